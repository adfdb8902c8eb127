// SPDX-License-Identifier: MIT
// A deadly signal that all threads block stays pending. From the moment when the last thread has blocked it, no kernel thread may let it in.
// (Not under the emulator, which has threads of its own.)
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { kRounds = 3000 };
static sem_t ping, pong;
static atomic_bool over;

static void* answers(void* unused) {
  (void)unused;
  for (;;) {
    while (sem_wait(&ping) != 0) {
    }
    if (over) return NULL;
    sem_post(&pong);
  }
}

int main(void) {
  int got = 0;
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGRTMIN);
  assert(sem_init(&ping, 0, 0) == 0 && sem_init(&pong, 0, 0) == 0);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  pthread_t other;
  assert(pthread_create(&other, NULL, answers, NULL) == 0);
  for (int i = 0; i < kRounds; i++) {
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    for (int k = 0; k < i % 7; k++) {  // main and the other thread go from worker to worker meanwhile
      sem_post(&ping);
      while (sem_wait(&pong) != 0) {
      }
    }
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    assert(kill(getpid(), SIGRTMIN) == 0);
    struct timespec t = {10, 0};
    got += sigtimedwait(&set, NULL, &t) == SIGRTMIN;
  }
  over = 1;
  sem_post(&ping);
  pthread_join(other, NULL);
  printf("stayed pending: %d of %d\n", got, kRounds);
}
