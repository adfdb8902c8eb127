// SPDX-License-Identifier: MIT
// A signal that only a thread let in which has ended. It stays pending, however short ago that was. With its default action it would end the
// process.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { kRounds = 3000 };
static int sig, handled;
static sem_t go;

static void count(int s) { handled += s == sig; }
static void* lets_in(void* p) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, sig);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  while (sem_wait(&go)) {
  }
  return p;
}

static void rounds(int which, const char* name) {
  sigset_t set, pending;
  int stayed = 0, taken = 0;
  sig = which;
  sigemptyset(&set);
  sigaddset(&set, sig);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  for (int i = 0; i < kRounds; i++) {
    pthread_t t;
    struct timespec zero = {0, 0};
    if (pthread_create(&t, NULL, lets_in, NULL)) continue;
    if (i % 2) sched_yield();
    sem_post(&go);
    pthread_join(t, NULL);
    kill(getpid(), sig);
    sigpending(&pending);
    stayed += sigismember(&pending, sig);
    taken += sigtimedwait(&set, NULL, &zero) == sig;
  }
  printf("%s: stayed %d, taken %d, handled %d\n", name, stayed, taken, handled);
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  sem_init(&go, 0, 0);
  signal(SIGUSR1, count);
  rounds(SIGUSR1, "handled");
  rounds(SIGTERM, "deadly");
  return 0;
}
