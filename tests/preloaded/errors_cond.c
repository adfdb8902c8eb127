// SPDX-License-Identifier: MIT
// Condition variables: mutexes that the wait must not release, times, clocks, attributes.
#include "errors.h"

static pthread_cond_t c;
static pthread_mutex_t m;

static void init_mutex(int type, int robust) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_settype(&a, type);
  pthread_mutexattr_setrobust(&a, robust);
  assert(pthread_mutex_init(&m, &a) == 0);
}
static void take(void* p) { assert(pthread_mutex_lock(&m) == 0); }
static void give(void* p) { assert(pthread_mutex_unlock(&m) == 0); }
static void* lock_and_die(void* p) {
  assert(pthread_mutex_lock(&m) == 0);
  pthread_cond_signal(&c);
  return p;
}
static void* lock_and_keep(void* p) {
  assert(pthread_mutex_lock(&m) == 0);
  return p;
}
static void* lock_die_and_spoil(void* p) {
  elsewhere(lock_and_keep, NULL);
  int r = pthread_mutex_lock(&m);
  assert(r == EOWNERDEAD);
  pthread_mutex_unlock(&m);
  pthread_cond_signal(&c);
  return p;
}
static pthread_t background(void* (*f)(void*)) {
  pthread_t t;
  assert(pthread_create(&t, NULL, f, NULL) == 0);
  return t;
}

// Waits with a mutex that the caller does not hold, and whose kind checks that.
static void not_mine(const char* state) {
  CASE(state, pthread_cond_wait, &c, &m);
  CASE(state, pthread_cond_timedwait, &c, &m, &past);
  CASE(state, pthread_cond_clockwait, &c, &m, CLOCK_MONOTONIC, &past);
  CASE(format("%s, tv_nsec 1e9", state), pthread_cond_timedwait, &c, &m, &bad_high);
  CASE(format("%s, tv_nsec 1e9", state), pthread_cond_clockwait, &c, &m, CLOCK_REALTIME, &bad_high);
  CASE(format("%s, clock 99", state), pthread_cond_clockwait, &c, &m, 99, &past);
}

static void objects(int shared, int clock) {
  const char* kind = format("%sclock %d", shared ? "shared, " : "", clock);
  pthread_condattr_t a;
  pthread_condattr_init(&a);
  pthread_condattr_setpshared(&a, shared);
  pthread_condattr_setclock(&a, clock);
  CASE(kind, pthread_cond_init, &c, &a);
  CASE("nobody", pthread_cond_signal, &c);
  CASE("nobody", pthread_cond_broadcast, &c);
  for (int robust = 0; robust < 2; robust++) {
    for (int type = robust ? 0 : 1; type < 3; type++) {
      init_mutex(type, robust);
      char state[64];
      snprintf(state, sizeof state, "%s, type %d%s", kind, type, robust ? ", robust" : "");
      not_mine(format("%s, free", state));
      struct helper h;
      helper_start(&h, take, give, NULL);
      not_mine(format("%s, another's", state));
      helper_end(&h);
      pthread_mutex_destroy(&m);
    }
  }
  init_mutex(PTHREAD_MUTEX_ERRORCHECK, 0);
  take(NULL);
  for (size_t i = 0; i < MOMENTS; i++) {
    CASE(format("%s, %s", kind, moments[i].name), pthread_cond_timedwait, &c, &m, moments[i].t);
    for (size_t k = 0; k < CLOCKS; k++)
      CASE(format("%s, %s, by %d", kind, moments[i].name, clocks[k]), pthread_cond_clockwait, &c, &m, clocks[k], moments[i].t);
  }
  struct timespec t = soon(clock);
  CASE("soon", pthread_cond_timedwait, &c, &m, &t);
  t = soon(CLOCK_MONOTONIC);
  CASE("soon", pthread_cond_clockwait, &c, &m, CLOCK_MONOTONIC, &t);
  CASE("still mine", pthread_mutex_unlock, &m);
  pthread_mutex_destroy(&m);
  // The wait unlocks a recursive mutex that is locked twice only once.
  init_mutex(PTHREAD_MUTEX_RECURSIVE, 0);
  take(NULL);
  take(NULL);
  CASE("locked twice", pthread_cond_timedwait, &c, &m, &past);
  give(NULL);
  CASE("once", pthread_mutex_unlock, &m);
  CASE("free", pthread_mutex_unlock, &m);
  pthread_mutex_destroy(&m);
  CASE(kind, pthread_cond_destroy, &c);
}

static int wait_until_signalled(int how) {
  const struct timespec never = {4000000000, 0};
  return how == 0   ? CASE("owner died", pthread_cond_wait, &c, &m)
         : how == 1 ? CASE("owner died", pthread_cond_timedwait, &c, &m, &never)
                    : CASE("owner died", pthread_cond_clockwait, &c, &m, CLOCK_MONOTONIC, &never);
}
// A thread held the mutex meanwhile and ended with it.
static void owner_dies(void) {
  pthread_cond_init(&c, NULL);
  for (int i = 0; i < 3; i++) {
    init_mutex(PTHREAD_MUTEX_ERRORCHECK, 1);
    take(NULL);
    pthread_t t = background(lock_and_die);
    int r = wait_until_signalled(i);
    pthread_join(t, NULL);
    if (r == EOWNERDEAD) CASE("inconsistent", pthread_mutex_consistent, &m);
    CASE("mine", pthread_mutex_unlock, &m);
    pthread_mutex_destroy(&m);
  }
  // The same, and the next owner unlocked the mutex without making it consistent.
  for (int i = 0; i < 3; i++) {
    init_mutex(PTHREAD_MUTEX_ERRORCHECK, 1);
    take(NULL);
    pthread_t t = background(lock_die_and_spoil);
    wait_until_signalled(i);
    pthread_join(t, NULL);
    pthread_mutex_destroy(&m);
  }
  CASE("", pthread_cond_destroy, &c);
}

static void attributes(void) {
  pthread_condattr_t a;
  CASE("", pthread_condattr_init, &a);
  for (size_t i = 0; i < CLOCKS; i++) {
    clockid_t clock = 77;
    CASE(format("%d", clocks[i]), pthread_condattr_setclock, &a, clocks[i]);
    CASE(format("after %d", clocks[i]), pthread_condattr_getclock, &a, &clock);
    printf("clock %d\n", clock);
  }
  for (int v = -1; v < 4; v++) {
    int now = 77;
    CASE(format("%d", v), pthread_condattr_setpshared, &a, v);
    CASE(format("after %d", v), pthread_condattr_getpshared, &a, &now);
    printf("shared %d\n", now);
  }
  CASE("", pthread_condattr_destroy, &a);
  CASE("no attributes", pthread_cond_init, &c, NULL);
  CASE("no attributes", pthread_cond_destroy, &c);
}

static void cases(void) {
  attributes();
  objects(0, CLOCK_REALTIME);
  objects(0, CLOCK_MONOTONIC);
  owner_dies();
}
