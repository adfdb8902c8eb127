// SPDX-License-Identifier: MIT
// Mutexes of every type, protocol, robustness and sharing, in every state.
#include "errors.h"

static const char* const types[] = {"normal", "recursive", "errorcheck", "adaptive"};
static const char* const protocols[] = {"", " inherit", " protect"};

static char what[64];  // the kind of mutex that is tried
static const char* in(const char* state) { return format("%s, %s", what, state); }

static void take(void* m) { assert(pthread_mutex_lock(m) == 0); }
static void give(void* m) { assert(pthread_mutex_unlock(m) == 0); }
static void* lock_and_die(void* m) {
  assert(pthread_mutex_lock(m) == 0);
  return m;
}
static void* try_all(void* p) {
  pthread_mutex_t* m = p;
  CASE(in("from another thread"), pthread_mutex_trylock, m);
  return p;
}

static void timed(pthread_mutex_t* m, const char* state, int locked) {
  for (size_t i = 0; i < MOMENTS; i++) {
    if (CASE(in(format("%s, %s", state, moments[i].name)), pthread_mutex_timedlock, m, moments[i].t) == 0 && !locked) give(m);
    if (CASE(in(format("%s, %s", state, moments[i].name)), pthread_mutex_clocklock, m, CLOCK_MONOTONIC, moments[i].t) == 0 && !locked)
      give(m);
  }
  for (size_t i = 0; i < CLOCKS; i++)
    if (CASE(in(format("%s, clock %d", state, clocks[i])), pthread_mutex_clocklock, m, clocks[i], &past) == 0 && !locked) give(m);
  if (!locked) return;
  struct timespec t = soon(CLOCK_REALTIME);
  CASE(in(format("%s, soon", state)), pthread_mutex_timedlock, m, &t);
}

// A mutex, and the attributes that it was made with.
struct mutex {
  pthread_mutex_t m;
  int type, protocol, robust;
  bool owned;  // pthread_mutex_unlock() checks the owner
};

static void nobody_has_it(struct mutex* mutex) {
  pthread_mutex_t* m = &mutex->m;
  int ceiling = -1;
  CASE(in("priority 1"), pthread_mutex_setprioceiling, m, 1, &ceiling);
  CASE(in("free"), pthread_mutex_lock, m);
  CASE(in("mine"), pthread_mutex_unlock, m);
  if (mutex->owned) CASE(in("free"), pthread_mutex_unlock, m);
  CASE(in("free"), pthread_mutex_trylock, m);
  give(m);
  timed(m, "free", 0);
}

// Locking such a mutex needs privileges, and the answer depends on the policy. errors_ceiling.c has those cases.
static void with_a_ceiling(struct mutex* mutex) {
  pthread_mutex_t* m = &mutex->m;
  int ceiling = -1;
  CASE(in("priority 0"), pthread_mutex_setprioceiling, m, 0, &ceiling);
  CASE(in("priority 100"), pthread_mutex_setprioceiling, m, 100, &ceiling);
  if (mutex->owned) CASE(in("free"), pthread_mutex_unlock, m);
  CASE(in("free"), pthread_mutex_destroy, m);
}

static void recursive_and_mine(pthread_mutex_t* m) {
  CASE(in("mine"), pthread_mutex_trylock, m);
  CASE(in("mine"), pthread_mutex_lock, m);
  elsewhere(try_all, m);
  for (int i = 0; i < 2; i++) CASE(in("twice more"), pthread_mutex_unlock, m);
  // The count cannot grow any further.
  m->__data.__count = UINT_MAX;
  CASE(in("as often as possible"), pthread_mutex_lock, m);
  CASE(in("as often as possible"), pthread_mutex_trylock, m);
  CASE(in("as often as possible"), pthread_mutex_timedlock, m, &past);
  CASE(in("as often as possible"), pthread_mutex_clocklock, m, CLOCK_MONOTONIC, &past);
  m->__data.__count = 1;
}

static void the_caller_has_it(struct mutex* mutex) {
  pthread_mutex_t* m = &mutex->m;
  int ceiling = -1;
  take(m);
  elsewhere(try_all, m);
  if (!mutex->robust) CASE(in("mine"), pthread_mutex_destroy, m);
  CASE(in("mine"), pthread_mutex_consistent, m);
  CASE(in("mine"), pthread_mutex_getprioceiling, m, &ceiling);
  if (mutex->type == PTHREAD_MUTEX_RECURSIVE) {
    recursive_and_mine(m);
  } else {
    CASE(in("mine"), pthread_mutex_trylock, m);
    if (mutex->type == PTHREAD_MUTEX_ERRORCHECK) CASE(in("mine"), pthread_mutex_lock, m);
    timed(m, "mine", 1);
  }
  CASE(in("mine"), pthread_mutex_unlock, m);
  if (mutex->owned) CASE(in("mine no more"), pthread_mutex_unlock, m);
}

static void another_thread_has_it(struct mutex* mutex) {
  pthread_mutex_t* m = &mutex->m;
  struct helper h;
  helper_start(&h, take, give, m);
  CASE(in("another's"), pthread_mutex_trylock, m);
  timed(m, "another's", 1);
  if (mutex->owned) CASE(in("another's"), pthread_mutex_unlock, m);
  if (!mutex->robust) CASE(in("another's"), pthread_mutex_destroy, m);
  CASE(in("another's"), pthread_mutex_consistent, m);
  helper_end(&h);
}

static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static int waits, woken;
static void* wait_with(void* m) {
  take(m);
  waits++;
  while (!woken) assert(pthread_cond_wait(&cond, m) == 0);
  give(m);
  return m;
}

// Two threads will come back to the mutex after their wait.
static void threads_wait_with_it(struct mutex* mutex) {
  pthread_mutex_t* m = &mutex->m;
  pthread_t t[2];
  waits = woken = 0;
  for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, wait_with, m);
  for (int all = 0; !all; usleep(100)) {
    take(m);
    all = waits == 2;
    give(m);
  }
  CASE(in("waited with"), pthread_mutex_destroy, m);
  take(m);
  woken = 1;
  pthread_cond_broadcast(&cond);
  give(m);
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
}

// The mutex is robust, and its owner has ended.
static void the_owner_has_ended(struct mutex* mutex) {
  pthread_mutex_t* m = &mutex->m;
  // Before 2.35, a mutex with inheritance knows only the realtime clock, and could not be locked here by the other.
  clockid_t clock = mutex->protocol == PTHREAD_PRIO_INHERIT && !__GLIBC_PREREQ(2, 35) ? CLOCK_REALTIME : CLOCK_MONOTONIC;
  for (int i = 0; i < 4; i++) {
    elsewhere(lock_and_die, m);
    if (i == 0) CASE(in("owner died"), pthread_mutex_lock, m);
    if (i == 1) CASE(in("owner died"), pthread_mutex_trylock, m);
    if (i == 2) CASE(in("owner died"), pthread_mutex_timedlock, m, &past);
    if (i == 3) CASE(in("owner died"), pthread_mutex_clocklock, m, clock, &past);
    CASE(in("owner died"), pthread_mutex_consistent, m);
    CASE(in("consistent"), pthread_mutex_consistent, m);
    CASE(in("consistent"), pthread_mutex_unlock, m);
  }
  elsewhere(lock_and_die, m);
  CASE(in("owner died"), pthread_mutex_lock, m);
  CASE(in("inconsistent"), pthread_mutex_unlock, m);
  CASE(in("not recoverable"), pthread_mutex_lock, m);
  CASE(in("not recoverable"), pthread_mutex_timedlock, m, &past);
  CASE(in("not recoverable"), pthread_mutex_clocklock, m, CLOCK_REALTIME, &past);
  CASE(in("not recoverable"), pthread_mutex_consistent, m);
  CASE(in("not recoverable"), pthread_mutex_trylock, m);  // last, since NPTL's call leaves the mutex locked
}

static void kind(int type, int protocol, int robust, int shared) {
  snprintf(what, sizeof what, "%s%s%s%s", types[type], protocols[protocol], robust ? " robust" : "", shared ? " shared" : "");
  pthread_mutexattr_t attr;
  struct mutex mutex = {.type = type, .protocol = protocol, .robust = robust};
  pthread_mutex_t* m = &mutex.m;
  int ceiling = -1;
  mutex.owned = type == PTHREAD_MUTEX_RECURSIVE || type == PTHREAD_MUTEX_ERRORCHECK || robust;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_settype(&attr, type);
  pthread_mutexattr_setprotocol(&attr, protocol);
  pthread_mutexattr_setrobust(&attr, robust);
  pthread_mutexattr_setpshared(&attr, shared);
  if (CASE(what, pthread_mutex_init, m, &attr) != 0) return;
  CASE(in("free"), pthread_mutex_consistent, m);
  if (CASE(in("free"), pthread_mutex_getprioceiling, m, &ceiling) == 0) printf("ceiling %d\n", ceiling);
  if (protocol == PTHREAD_PRIO_PROTECT) {
    with_a_ceiling(&mutex);
    return;
  }
  nobody_has_it(&mutex);
  the_caller_has_it(&mutex);
  another_thread_has_it(&mutex);
  if (robust) the_owner_has_ended(&mutex);
  else threads_wait_with_it(&mutex);
  CASE(in("at last"), pthread_mutex_destroy, m);
}

static void attributes(void) {
  pthread_mutexattr_t attr;
  int v;
  CASE("", pthread_mutexattr_init, &attr);
  static const int values[] = {-1, 0, 1, 2, 3, 4, 99, INT_MAX, INT_MIN};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    v = 77;
#define BOTH(what) \
  do { \
    CASE(format("%d", values[i]), pthread_mutexattr_set##what, &attr, values[i]); \
    CASE(format("after %d", values[i]), pthread_mutexattr_get##what, &attr, &v); \
    printf(#what " %d\n", v); \
  } while (0)
    BOTH(type);
    BOTH(protocol);
    BOTH(robust);
    BOTH(pshared);
    BOTH(prioceiling);
  }
  CASE("", pthread_mutexattr_destroy, &attr);
  // The mutex has the ceiling that its attributes ask for.
  pthread_mutex_t m;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_PROTECT);
  pthread_mutexattr_setprioceiling(&attr, 42);
  CASE("ceiling 42", pthread_mutex_init, &m, &attr);
  CASE("ceiling 42", pthread_mutex_getprioceiling, &m, &v);
  printf("ceiling %d\n", v);
  CASE("", pthread_mutex_destroy, &m);
  CASE("no attributes", pthread_mutex_init, &m, NULL);
  CASE("no attributes", pthread_mutex_destroy, &m);
}

static void cases(void) {
  attributes();
  for (int shared = 0; shared < 2; shared++)
    for (int robust = 0; robust < 2; robust++)
      for (int protocol = 0; protocol < 3; protocol++)
        for (int type = 0; type < 4; type++) kind(type, protocol, robust, shared);
}
