// SPDX-License-Identifier: MIT
// A signal for the process does not stay with a thread that has let it in for a moment and blocks it again. It goes to a thread that has it
// unblocked or waits for it.
#define _GNU_SOURCE
#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

enum { kRounds = 500 };
enum Way { kPpoll, kMask, kPselect, kHandler, kWays };
static const char* const names[] = {"ppoll", "pthread_sigmask", "pselect", "another handler's mask"};
static sigset_t usr1, all_but_usr1;
static int pipes[2], handled, over;
static volatile int stop;
static sem_t go_on, away;

static void on_signal(int sig) { __atomic_fetch_add(&handled, 1, __ATOMIC_SEQ_CST); }
static void on_other(int sig) {
  for (volatile int k = 0; k < 300; k++) {
  }
}
static void wait_for(sem_t* s) {
  while (sem_wait(s) != 0) {
  }
}

// Lets the signal in once in each round. A signal that has come by then and was not taken is for other threads.
static void* lets_in(void* way) {
  for (int i = 1; !stop; i++) {
    struct pollfd f = {pipes[0], POLLIN};
    fd_set set;
    switch ((enum Way)(long)way) {
      case kPpoll: ppoll(&f, 1, NULL, &all_but_usr1); break;
      case kPselect:
        FD_ZERO(&set);
        FD_SET(pipes[0], &set);
        pselect(pipes[0] + 1, &set, NULL, NULL, NULL, &all_but_usr1);
        break;
      case kMask:
      case kHandler:
        pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
        if ((enum Way)(long)way == kHandler) pthread_kill(pthread_self(), SIGUSR2);
        for (volatile int k = 0; k < i % 300; k++) {
        }
        pthread_sigmask(SIG_BLOCK, &usr1, NULL);
        break;
      case kWays: break;
    }
    __atomic_store_n(&over, i, __ATOMIC_SEQ_CST);
    wait_for(&go_on);
  }
  return NULL;
}
// Has the signal unblocked, and parks.
static void* elsewhere(void* p) {
  pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
  wait_for(&away);
  return p;
}
static void* waits(void* p) {
  while (!stop) {
    int sig;
    sigwait(&usr1, &sig);
    on_signal(sig);
  }
  return p;
}

static void rounds(enum Way way, int waiting) {
  pthread_t other, t;
  stop = handled = over = 0;
  sem_init(&go_on, 0, 0);
  sem_init(&away, 0, 0);
  assert(pipe(pipes) == 0);
  pthread_create(&other, NULL, waiting ? waits : elsewhere, NULL);
  pthread_create(&t, NULL, lets_in, (void*)(long)way);
  for (int i = 1; i <= kRounds; i++) {
    for (volatile int k = 0; k < rand() % 2000; k++) {
    }
    if (i % 2) kill(getpid(), SIGUSR1);
    assert(write(pipes[1], "x", 1) == 1);
    if (i % 2 == 0) kill(getpid(), SIGUSR1);
    time_t since = time(NULL);
    while (__atomic_load_n(&handled, __ATOMIC_SEQ_CST) < i && time(NULL) - since < 60) sched_yield();
    if (handled < i) printf("%s: kept\n", names[way]), exit(1);
    while (__atomic_load_n(&over, __ATOMIC_SEQ_CST) < i) sched_yield();
    char c;
    assert(read(pipes[0], &c, 1) == 1);
    if (i == kRounds) stop = 1;
    sem_post(&go_on);
  }
  pthread_join(t, NULL);
  sem_post(&away);
  if (waiting) pthread_kill(other, SIGUSR1);
  pthread_join(other, NULL);
  printf("%s, and another %s: all handled\n", names[way], waiting ? "waits" : "has it unblocked");
  close(pipes[0]), close(pipes[1]);
}

int main() {
  struct sigaction a = {.sa_handler = on_signal};
  sigaction(SIGUSR1, &a, NULL);
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  a.sa_handler = on_other;
  a.sa_mask = usr1;
  sigaction(SIGUSR2, &a, NULL);
  pthread_sigmask(SIG_BLOCK, &usr1, NULL);
  sigfillset(&all_but_usr1);
  sigdelset(&all_but_usr1, SIGUSR1);
  for (int waiting = 0; waiting < 2; waiting++)
    for (int way = 0; way < kWays; way++) rounds(way, waiting);
  return 0;
}
