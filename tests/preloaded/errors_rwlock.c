// SPDX-License-Identifier: MIT
// Read-write locks of every kind, in every state.
#include "errors.h"

static pthread_rwlock_t* l;
static char what[64];
static const char* in(const char* state) { return format("%s, %s", what, state); }

static void read_it(void* p) { assert(pthread_rwlock_rdlock(l) == 0); }
static void write_it(void* p) { assert(pthread_rwlock_wrlock(l) == 0); }
static void give(void* p) { assert(pthread_rwlock_unlock(l) == 0); }
static void mine(int e) {
  if (e == 0) give(NULL);
}

static void* try_all(void* p) {
  const char* state = p;
  mine(CASE(in(state), pthread_rwlock_tryrdlock, l));
  mine(CASE(in(state), pthread_rwlock_trywrlock, l));
  return p;
}

static void timed(const char* state, bool reading) {
  for (size_t i = 0; i < MOMENTS; i++) {
    const char* s = in(format("%s, %s", state, moments[i].name));
    if (reading) {
      mine(CASE(s, pthread_rwlock_timedrdlock, l, moments[i].t));
      mine(CASE(s, pthread_rwlock_clockrdlock, l, CLOCK_MONOTONIC, moments[i].t));
    } else {
      mine(CASE(s, pthread_rwlock_timedwrlock, l, moments[i].t));
      mine(CASE(s, pthread_rwlock_clockwrlock, l, CLOCK_MONOTONIC, moments[i].t));
    }
  }
  for (size_t i = 0; i < CLOCKS; i++) {
    const char* s = in(format("%s, clock %d", state, clocks[i]));
    if (reading) mine(CASE(s, pthread_rwlock_clockrdlock, l, clocks[i], &past));
    else mine(CASE(s, pthread_rwlock_clockwrlock, l, clocks[i], &past));
  }
  struct timespec t = soon(CLOCK_REALTIME);
  if (reading) mine(CASE(in(format("%s, soon", state)), pthread_rwlock_timedrdlock, l, &t));
  else mine(CASE(in(format("%s, soon", state)), pthread_rwlock_timedwrlock, l, &t));
}

static void kind(int type, int shared) {
  snprintf(what, sizeof what, "kind %d%s", type, shared ? " shared" : "");
  pthread_rwlock_t lock;
  pthread_rwlockattr_t a;
  pthread_rwlockattr_init(&a);
  pthread_rwlockattr_setkind_np(&a, type);
  pthread_rwlockattr_setpshared(&a, shared);
  l = &lock;
  CASE(what, pthread_rwlock_init, l, &a);

  CASE(in("free"), pthread_rwlock_rdlock, l);
  CASE(in("read"), pthread_rwlock_unlock, l);
  CASE(in("free"), pthread_rwlock_wrlock, l);
  CASE(in("written"), pthread_rwlock_unlock, l);
  try_all("free");
  timed("free", true);
  timed("free", false);

  write_it(NULL);
  CASE(in("I write"), pthread_rwlock_rdlock, l);
  CASE(in("I write"), pthread_rwlock_wrlock, l);
  try_all("I write");
  timed("I write", true);
  timed("I write", false);
  elsewhere(try_all, "another writes");
  CASE(in("I write"), pthread_rwlock_unlock, l);

  read_it(NULL);
  CASE(in("I read"), pthread_rwlock_rdlock, l);
  try_all("I read");
  timed("I read", true);
  timed("I read", false);
  elsewhere(try_all, "another reads");
  CASE(in("I read twice"), pthread_rwlock_unlock, l);
  CASE(in("I read"), pthread_rwlock_unlock, l);

  struct helper h;
  helper_start(&h, write_it, give, NULL);
  try_all("another writes");
  timed("another writes", true);
  timed("another writes", false);
  helper_end(&h);
  helper_start(&h, read_it, give, NULL);
  try_all("another reads");
  timed("another reads", true);
  timed("another reads", false);
  helper_end(&h);

  // The first word counts readers. This sets the count to almost as many as the lock can have.
  unsigned* word = (unsigned*)l;
  unsigned free_word = *word;
  read_it(NULL);
  unsigned one = *word - free_word, most = (1u << 28) - 1;
  *word += one * (most - 2);
  CASE(in("most readers but one"), pthread_rwlock_rdlock, l);
  CASE(in("most readers"), pthread_rwlock_rdlock, l);
  CASE(in("most readers"), pthread_rwlock_tryrdlock, l);
  CASE(in("most readers"), pthread_rwlock_timedrdlock, l, &past);
  CASE(in("most readers"), pthread_rwlock_clockrdlock, l, CLOCK_MONOTONIC, &past);
  CASE(in("most readers"), pthread_rwlock_trywrlock, l);
  CASE(in("most readers"), pthread_rwlock_unlock, l);
  CASE(in("one less"), pthread_rwlock_rdlock, l);
  give(NULL);
  *word -= one * (most - 2);
  CASE(in("I read"), pthread_rwlock_unlock, l);
  CASE(in("free"), pthread_rwlock_trywrlock, l);
  CASE(in("I write"), pthread_rwlock_unlock, l);
  CASE(what, pthread_rwlock_destroy, l);
}

static void cases(void) {
  pthread_rwlockattr_t a;
  CASE("", pthread_rwlockattr_init, &a);
  static const int values[] = {-1, 0, 1, 2, 3, 99};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    int v = 77;
    CASE(format("%d", values[i]), pthread_rwlockattr_setkind_np, &a, values[i]);
    CASE(format("after %d", values[i]), pthread_rwlockattr_getkind_np, &a, &v);
    printf("kind %d\n", v);
    CASE(format("%d", values[i]), pthread_rwlockattr_setpshared, &a, values[i]);
    CASE(format("after %d", values[i]), pthread_rwlockattr_getpshared, &a, &v);
    printf("shared %d\n", v);
  }
  CASE("", pthread_rwlockattr_destroy, &a);
  pthread_rwlock_t lock;
  CASE("no attributes", pthread_rwlock_init, &lock, NULL);
  CASE("no attributes", pthread_rwlock_destroy, &lock);
  for (int shared = 0; shared < 2; shared++)
    for (int type = 0; type < 3; type++) kind(type, shared);
}
