// SPDX-License-Identifier: MIT
// What the tests of signals for parked threads share: a handler that notes what it is told, masks, and threads that wait.
#pragma once
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_t main_thread;
static sem_t about;  // posted by a thread that is about to wait
static sem_t go, sem;
// Noted by the handler, and the signals in their order, each with its value.
static volatile int runs, ran_in_main, last_code, last_value, last_pid;
static char order[256];

static inline void note(int sig, siginfo_t* info, void* context) {
  ran_in_main = pthread_equal(pthread_self(), main_thread);
  last_code = info->si_code;
  last_value = info->si_value.sival_int;
  last_pid = info->si_pid;
  size_t n = strlen(order);
  if (n < sizeof order - 8) snprintf(order + n, 8, "%d:%d ", sig >= SIGRTMIN ? sig - SIGRTMIN : -sig, last_value % 1000);
  __atomic_fetch_add(&runs, 1, __ATOMIC_SEQ_CST);
}
static inline void handle(int sig, int flags) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_sigaction = note;
  sa.sa_flags = flags | SA_SIGINFO;
  assert(sigaction(sig, &sa, NULL) == 0);
}
static inline sigset_t set_of(int a, int b) {
  sigset_t s;
  sigemptyset(&s);
  if (a) sigaddset(&s, a);
  if (b) sigaddset(&s, b);
  return s;
}
static inline void mask(int how, int sig) {
  sigset_t s = set_of(sig, 0);
  pthread_sigmask(how, &s, NULL);
}
static inline int is_pending(int sig) {
  sigset_t s;
  sigpending(&s);
  return sigismember(&s, sig);
}
// Waits until a thread has said that it is about to wait, and then long enough that it does.
static inline void settle(void) {
  while (sem_wait(&about)) {
  }
  for (int i = 0; i < 5; i++) usleep(2000);
}
static inline void await_runs(int n) {
  while (__atomic_load_n(&runs, __ATOMIC_SEQ_CST) < n) usleep(500);
}
static inline const char* name(int e) {
  return e == 0           ? "0"
         : e == EINTR     ? "EINTR"
         : e == EAGAIN    ? "EAGAIN"
         : e == EINVAL    ? "EINVAL"
         : e == ESRCH     ? "ESRCH"
         : e == ETIMEDOUT ? "ETIMEDOUT"
                          : "?";
}

// Runs f(0), …, f(n - 1) in a child.
static inline void child(int n, void (*f)(int)) {
  fflush(stdout);
  if (fork() == 0) {
    for (int i = 0; i < n; i++) f(i);
    _exit(0);
  }
}
static inline void reap(void) {
  while (wait(NULL) < 0) {
  }
}

static inline void* parked(void* p) {
  mask(SIG_UNBLOCK, SIGUSR1);
  sem_post(&about);
  while (sem_wait(&sem)) assert(errno == EINTR);
  return p;
}
static inline void* nothing(void* p) { return p; }

// Blocks the signals in question, and makes a first thread.
static inline void begin(void) {
  setlinebuf(stdout);
  main_thread = pthread_self();
  sem_init(&about, 0, 0);
  sem_init(&go, 0, 0);
  sem_init(&sem, 0, 0);
  sigset_t s = set_of(SIGUSR2, SIGRTMIN + 4);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
  mask(SIG_BLOCK, SIGUSR1);
  pthread_t t;
  pthread_create(&t, NULL, nothing, NULL);
  pthread_join(t, NULL);
}
