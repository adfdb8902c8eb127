// SPDX-License-Identifier: MIT
// expect: preloaded only
// pthread_exit() in a signal's handler, at any point of a wait with cleanup handlers: on the way to sleep, asleep, woken at the same time,
// or waiting for the mutex again. Cleanup handlers always have the mutex, whether cancellation is enabled or not, and no thread stays in a
// queue. (On NPTL, a thread that is hit between the wake-up and the mutex, or just before it sleeps, runs its cleanup handlers without the
// mutex.)
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum kind { COND, TIMED, NO_CANCEL, JOIN, TIMED_JOIN, NESTED, CANCEL, kKinds };
static const char* const names[] = {"cond",
                                    "cond (timed)",
                                    "cond, not to be cancelled",
                                    "join",
                                    "join, not to be cancelled",
                                    "handlers in handlers",
                                    "cancelled in a handler"};
static enum kind kind;

static pthread_mutex_t mutex;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER, inner_cond = PTHREAD_COND_INITIALIZER;
static pthread_t joined;
static atomic_int ready, unlocked;
static atomic_uint inner;
static unsigned seed;

static unsigned any(void) { return (seed = seed * 1103515245 + 12345) >> 16; }
static void leave(int sig) { pthread_exit((void*)(long)sig); }
// Waits within the handler, and the next signal comes during that wait.
static void wait_inside(int sig) {
  pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&m);
  inner++;
  for (;;) pthread_cond_wait(&inner_cond, &m);
}
static void unlock(void* p) {
  assert(pthread_mutex_unlock(p) == 0);  // EPERM if the caller did not own the mutex
  unlocked++;
}

static void* wait_for_ever(void* p) {
  struct timespec late = {time(NULL) + 1000, 0};
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  if (kind == NO_CANCEL || kind == TIMED_JOIN) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  if (kind == JOIN || kind == TIMED_JOIN) {
    pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
    ready++;
    if (kind == JOIN) pthread_join(joined, NULL);
    else pthread_timedjoin_np(joined, NULL, &late);
    return NULL;
  }
  pthread_mutex_lock(&mutex);
  pthread_cleanup_push(unlock, &mutex);
  pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
  ready++;
  for (;;)
    if (kind == TIMED) pthread_cond_timedwait(&cond, &mutex, &late);
    else pthread_cond_wait(&cond, &mutex);
  pthread_cleanup_pop(1);
  return NULL;
}
static void* sleep_on(void* p) {
  while (!atomic_load((atomic_int*)p)) sched_yield();
  return p;
}

int main(void) {
  enum { kThreads = 4, kRounds = 300 };
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&mutex, &a);
  sigaction(SIGUSR2, &(struct sigaction){.sa_handler = leave}, NULL);
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &usr1, NULL);
  for (kind = 0; kind < kKinds; kind++) {
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = kind >= NESTED ? wait_inside : leave}, NULL);
    unlocked = 0;
    for (int round = 0; round < kRounds; round++) {
      int joins = kind == JOIN || kind == TIMED_JOIN, threads = joins ? 1 : kThreads;
      atomic_int end = 0;
      pthread_t t[kThreads];
      void* r;
      ready = 0;
      inner = 0;
      if (joins) pthread_create(&joined, NULL, sleep_on, &end);
      for (int i = 0; i < threads; i++) pthread_create(&t[i], NULL, wait_for_ever, NULL);
      while (ready < threads) sched_yield();
      for (unsigned i = any() % 4096; i--;) atomic_signal_fence(memory_order_seq_cst);
      unsigned wake = any() % 4;
      if (!joins && wake == 1) pthread_cond_broadcast(&cond);
      for (int i = 0; i < threads; i++) {
        assert(pthread_kill(t[i], SIGUSR1) == 0);
        if (!joins && wake == 2) pthread_cond_signal(&cond);
      }
      if (!joins && wake == 3) pthread_cond_broadcast(&cond);
      if (kind >= NESTED) {
        while (inner < (unsigned)threads) sched_yield();
        for (int i = 0; i < threads; i++) assert((kind == CANCEL ? pthread_cancel(t[i]) : pthread_kill(t[i], SIGUSR2)) == 0);
      }
      for (int i = 0; i < threads; i++) {
        assert(pthread_join(t[i], &r) == 0);
        assert(kind == CANCEL ? r == PTHREAD_CANCELED : (long)r == (kind == NESTED ? SIGUSR2 : SIGUSR1));
      }
      if (joins) {
        end = 1;
        assert(pthread_join(joined, &r) == 0 && r == &end);
      } else {
        pthread_cond_broadcast(&cond);  // no thread waits
        assert(pthread_mutex_lock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
      }
    }
    printf("%s: %d unlocked\n", names[kind], unlocked);
  }
  return 0;
}
