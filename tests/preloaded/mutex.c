// SPDX-License-Identifier: MIT
// Mutexes of all kinds, timed waits, robustness, and mutual exclusion under load.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t checking = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;

static struct timespec in_ms(clockid_t clock, long ms) {
  struct timespec t;
  clock_gettime(clock, &t);
  t.tv_nsec += ms * 1000000;
  t.tv_sec += t.tv_nsec / 1000000000;
  t.tv_nsec %= 1000000000;
  return t;
}

static void* others(void* p) {
  struct timespec t = in_ms(CLOCK_REALTIME, 20), m = in_ms(CLOCK_MONOTONIC, 20), bad = {0, 1000000000};
  assert(pthread_mutex_trylock(&plain) == EBUSY);
  assert(pthread_mutex_timedlock(&plain, &bad) == EINVAL);
  assert(pthread_mutex_timedlock(&plain, &t) == ETIMEDOUT);
  assert(pthread_mutex_clocklock(&plain, CLOCK_MONOTONIC, &m) == ETIMEDOUT);
  assert(pthread_mutex_clocklock(&plain, CLOCK_PROCESS_CPUTIME_ID, &m) == EINVAL);
  assert(pthread_mutex_trylock(&recursive) == EBUSY);
  assert(pthread_mutex_unlock(&checking) == EPERM);
  assert(pthread_mutex_unlock(&recursive) == EPERM);
  return p;
}

static void kinds(void) {
  assert(pthread_mutex_lock(&plain) == 0);
  assert(pthread_mutex_trylock(&plain) == EBUSY);
  for (int i = 0; i < 3; i++) assert(pthread_mutex_lock(&recursive) == 0);
  assert(pthread_mutex_trylock(&recursive) == 0);
  assert(pthread_mutex_lock(&checking) == 0);
  assert(pthread_mutex_lock(&checking) == EDEADLK);
  assert(pthread_mutex_trylock(&checking) == EBUSY);
  pthread_t t;
  pthread_create(&t, NULL, others, NULL);
  pthread_join(t, NULL);
  for (int i = 0; i < 4; i++) assert(pthread_mutex_unlock(&recursive) == 0);
  assert(pthread_mutex_unlock(&recursive) == EPERM);
  assert(pthread_mutex_unlock(&checking) == 0);
  assert(pthread_mutex_unlock(&plain) == 0);
}

static pthread_mutex_t robust;
static void* dies(void* p) {
  assert(pthread_mutex_lock(&robust) == 0);
  return p;
}
static void owner_died(void) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
  for (int consistent = 1; consistent >= 0; consistent--) {
    pthread_mutex_init(&robust, &a);
    pthread_t t;
    pthread_create(&t, NULL, dies, NULL);
    pthread_join(t, NULL);
    assert(pthread_mutex_lock(&robust) == EOWNERDEAD);
    if (consistent) assert(pthread_mutex_consistent(&robust) == 0);
    assert(pthread_mutex_unlock(&robust) == 0);
    assert(pthread_mutex_lock(&robust) == (consistent ? 0 : ENOTRECOVERABLE));
    if (consistent) pthread_mutex_unlock(&robust);
    pthread_mutex_destroy(&robust);
  }
}

enum { kThreads = 32, kRounds = 3000 };
static long counters[3];
static pthread_mutex_t* const all[3] = {&plain, &recursive, &checking};
static void* load(void* p) {
  unsigned seed = (unsigned)(size_t)p;
  for (int i = 0; i < kRounds; i++) {
    int k = rand_r(&seed) % 3, how = rand_r(&seed) % 8;
    if (how == 0) {
      struct timespec t = in_ms(CLOCK_REALTIME, rand_r(&seed) % 3);
      while (pthread_mutex_timedlock(all[k], &t) == ETIMEDOUT) t = in_ms(CLOCK_REALTIME, 1);
    } else if (how == 1) {
      while (pthread_mutex_trylock(all[k]) != 0) sched_yield();
    } else {
      pthread_mutex_lock(all[k]);
    }
    long c = counters[k];
    if (how == 2) sched_yield();
    counters[k] = c + 1;
    pthread_mutex_unlock(all[k]);
  }
  return NULL;
}

int main() {
  kinds();
  owner_died();
  pthread_t t[kThreads];
  for (long i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, load, (void*)(i + 1));
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  printf("%ld\n", counters[0] + counters[1] + counters[2]);
  assert(pthread_mutex_destroy(&plain) == 0 && pthread_mutex_destroy(&recursive) == 0);
  return 0;
}
