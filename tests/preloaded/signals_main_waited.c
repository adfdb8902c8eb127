// SPDX-License-Identifier: MIT
// Main waits for a signal for a while, with a mask that lets it in. Then another thread blocks the signal, which must not take long, whatever
// kernel thread took signals for main meanwhile.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

enum { kRounds = 300 };
static sem_t ping, pong;
static sigset_t set;

static void on_signal(int sig) { (void)sig; }

static void* blocks(void* unused) {
  (void)unused;
  for (int i = 0; i < kRounds; i++) {
    while (sem_wait(&ping) != 0) {
    }
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sem_post(&pong);
  }
  return NULL;
}

int main(void) {
  int late = 0;
  sigset_t none;
  sigemptyset(&none), sigemptyset(&set), sigaddset(&set, SIGUSR1);
  assert(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_signal}, NULL) == 0);
  assert(sem_init(&ping, 0, 0) == 0 && sem_init(&pong, 0, 0) == 0);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  pthread_t other;
  assert(pthread_create(&other, NULL, blocks, NULL) == 0);
  for (int i = 0; i < kRounds; i++) {
    assert(ppoll(NULL, 0, &(struct timespec){0, 300000}, &none) == 0);
    sem_post(&ping);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 30;
    int e;
    while ((e = sem_timedwait(&pong, &until)) != 0 && errno == EINTR) {
    }
    if (e) late++;
    if (e) break;
  }
  if (!late) pthread_join(other, NULL);
  printf("blocked late: %d\n", late);
  return 0;
}
