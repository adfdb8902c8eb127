// SPDX-License-Identifier: MIT
// Read-write locks, semaphores, spin locks, barriers, pthread_once and the objects of C11, of one thread.
#include "differential.h"

struct locks {
  pthread_rwlock_t rwlocks[2];
  bool rwlock_there[2];
  int readers[2], writer[2];
  sem_t sems[2];
  bool sem_there[2];
  pthread_spinlock_t spin;
  bool spin_there, spin_held;
  pthread_once_t once;
  mtx_t mtx;
  bool mtx_there;
  int mtx_type, mtx_count;
};
void* locks_new(void) { return calloc(1, sizeof(struct locks)); }

struct call {
  int what, moment, clock, result, second;
  bool here;
  void* object;
};

// ---- read-write locks ----

enum { kRead, kTryRead, kTimedRead, kClockRead, kWrite, kTryWrite, kTimedWrite, kClockWrite, kUnlock, kRemake, kRwCalls };
static const char* const rw_names[] = {"rdlock",    "tryrdlock",   "timedrdlock", "clockrdlock", "wrlock",
                                       "trywrlock", "timedwrlock", "clockwrlock", "unlock",      "remake"};

static void* rw_call(void* v) {
  struct call* c = v;
  pthread_rwlock_t* l = c->object;
  struct timespec t = moment(c->moment, c->what % 4 == 2 ? CLOCK_REALTIME : clock_of(c->clock));
  clockid_t clock = clock_of(c->clock);
  switch (c->what) {
    case kRead: c->result = pthread_rwlock_rdlock(l); break;
    case kTryRead: c->result = pthread_rwlock_tryrdlock(l); break;
    case kTimedRead: c->result = pthread_rwlock_timedrdlock(l, &t); break;
    case kClockRead: c->result = pthread_rwlock_clockrdlock(l, clock, &t); break;
    case kWrite: c->result = pthread_rwlock_wrlock(l); break;
    case kTryWrite: c->result = pthread_rwlock_trywrlock(l); break;
    case kTimedWrite: c->result = pthread_rwlock_timedwrlock(l, &t); break;
    case kClockWrite: c->result = pthread_rwlock_clockwrlock(l, clock, &t); break;
    default: c->result = pthread_rwlock_unlock(l);
  }
  if (!c->here && c->result == 0) c->second = pthread_rwlock_unlock(l);
  return NULL;
}
static void rw_call_in_child(void* v) {
  struct call* c = v;
  rw_call(c);
  say(" child %s=%s", rw_names[c->what], error_name(c->result));
}
static void rw_make(int i, int kind, int shared) {
  pthread_rwlockattr_t a;
  pthread_rwlockattr_init(&a);
  pthread_rwlockattr_setkind_np(&a, kind);
  pthread_rwlockattr_setpshared(&a, shared);
  SAY_ERROR("init", pthread_rwlock_init(&me->locks->rwlocks[i], &a));
  me->locks->rwlock_there[i] = true;
  me->locks->readers[i] = me->locks->writer[i] = 0;
}
static void rw_release(int i) {
  struct locks* all = me->locks;
  for (; all->readers[i] + all->writer[i] > 0; all->readers[i] ? all->readers[i]-- : all->writer[i]--)
    SAY_ERROR("unlock", pthread_rwlock_unlock(&all->rwlocks[i]));
}

static void rwlock(struct operation* o) {
  struct locks* all = me->locks;
  int i = o->a[0], *readers = &all->readers[i], *writer = &all->writer[i], where = o->a[3] < 7 ? 0 : o->a[3] < 10 ? 1 : 2;
  struct call c = {.what = o->a[1], .moment = o->a[2] % kMoments, .clock = o->a[2] / kMoments, .object = &all->rwlocks[i]};
  if (!all->rwlock_there[i]) rw_make(i, o->a[3] % 3, o->a[2] % 2);
  if (c.what == kRemake) {
    rw_release(i);
    SAY_ERROR("destroy", pthread_rwlock_destroy(&all->rwlocks[i]));
    rw_make(i, o->a[3] % 3, o->a[2] % 2);
    return;
  }
  if (where == 2 && (!has_children || *readers + *writer)) where = 1;
  c.here = where == 0;
  if (c.what == kRead && *writer && !c.here) c.what = kTryRead;
  if (c.what == kWrite && (*readers || (*writer && !c.here))) c.what = kTryWrite;
  if (c.what == kUnlock && !(c.here && *readers + *writer)) c.what = kTryRead;
  say(" readers %d writer %d%s %s", *readers, *writer, where ? where == 1 ? " elsewhere" : " in a child" : "", moment_names[c.moment]);
  if (where == 2) {
    say(" %#x", in_child(rw_call_in_child, &c));
    return;
  }
  if (where == 1) elsewhere(rw_call, &c);
  else rw_call(&c);
  SAY_ERROR(rw_names[c.what], c.result);
  if (!c.here || c.result) return;
  if (c.what == kUnlock) *writer ? --*writer : --*readers;
  else if (c.what < kWrite) ++*readers;
  else ++*writer;
}

// ---- semaphores ----

static void semaphore(struct operation* o) {
  struct locks* all = me->locks;
  sem_t* s = &all->sems[o->a[0]];
  int value = -1, clock = o->a[3] % 2;
  if (!all->sem_there[o->a[0]]) {
    SAY_ERRNO("init", sem_init(s, o->a[3] % 2, o->a[2]));
    all->sem_there[o->a[0]] = true;
  }
  sem_getvalue(s, &value);
  say(" %d", value);
  struct timespec t = moment(o->a[2], clock_of(o->a[1] == 3 ? clock : 0));
  switch (o->a[1]) {
    case 0: SAY_ERRNO("trywait", sem_trywait(s)); break;
    case 1: SAY_ERRNO("wait", value > 0 ? sem_wait(s) : sem_trywait(s)); break;
    case 2: SAY_ERRNO("timedwait", sem_timedwait(s, &t)); break;
    case 3: SAY_ERRNO("clockwait", sem_clockwait(s, clock_of(clock), &t)); break;
    case 4:
    case 5: SAY_ERRNO("post", sem_post(s)); break;
    case 6:
      SAY_ERRNO("destroy", sem_destroy(s));
      SAY_ERRNO("too large", sem_init(s, 0, SEM_VALUE_MAX + 1u));
      SAY_ERRNO("init", sem_init(s, o->a[3] % 2, o->a[3] == 3 ? SEM_VALUE_MAX : o->a[2]));
      break;
    default: {
      char name[64];
      snprintf(name, sizeof name, "/differential-%d-%d", getpid(), me->number);
      sem_t* n = sem_open(name, O_CREAT | O_EXCL, 0600, o->a[2]);
      say(" open=%s", n == SEM_FAILED ? error_name(errno) : "0");
      say(" exclusive=%s", sem_open(name, O_CREAT | O_EXCL, 0600, 1) == SEM_FAILED ? error_name(errno) : "0");
      SAY_ERRNO("unlink", sem_unlink(name));
      SAY_ERRNO("trywait", sem_trywait(n));
      SAY_ERRNO("post", sem_post(n));
      SAY_ERRNO("wait", sem_wait(n));
      SAY_ERRNO("close", sem_close(n));
    }
  }
  sem_getvalue(s, &value);
  say(" %d", value);
}

// ---- the others ----

static void* spin_try(void* v) {
  struct call* c = v;
  c->result = pthread_spin_trylock(c->object);
  if (c->result == 0 && !c->here) pthread_spin_unlock(c->object);
  return NULL;
}
static void spin(struct operation* o) {
  struct locks* all = me->locks;
  struct call c = {.object = (void*)&all->spin, .here = o->a[0] % 2};
  if (!all->spin_there) SAY_ERROR("init", pthread_spin_init(&all->spin, o->a[0] / 2));
  all->spin_there = true;
  if (c.here && all->spin_held) {
    SAY_ERROR("unlock", pthread_spin_unlock(&all->spin));
    all->spin_held = false;
    return;
  }
  if (c.here) {
    spin_try(&c);
    all->spin_held = c.result == 0;
  } else {
    elsewhere(spin_try, &c);
  }
  SAY_ERROR("trylock", c.result);
}

static _Thread_local int ends_in_once;
static void initialise(void) {
  say(" initialise");
  if (ends_in_once == 1) pthread_exit((void*)5L);
  if (ends_in_once == 2) {
    pthread_cancel(pthread_self());
    pthread_testcancel();
  }
}
static void* call_once_in(void* p) {
  ends_in_once = *(int*)p;
  SAY_ERROR("once", pthread_once(&me->locks->once, initialise));
  return NULL;
}
static void once(struct operation* o) {
  int how = o->a[0];
  if (how == 3) me->locks->once = (pthread_once_t)PTHREAD_ONCE_INIT;
  if (how == 4) {
    how = 0;
    call_once_in(&how);
  } else {
    elsewhere(call_once_in, &how);
  }
}

static void barrier(struct operation* o) {
  static const unsigned counts[] = {1, 0, INT_MAX + 1u, 2};
  pthread_barrier_t b;
  pthread_barrierattr_t a;
  pthread_barrierattr_init(&a);
  pthread_barrierattr_setpshared(&a, o->a[1]);
  int e = pthread_barrier_init(&b, &a, counts[o->a[0]]);
  SAY_ERROR("init", e);
  for (int i = 0; o->a[0] == 0 && i < 3; i++) SAY_ERROR("wait", pthread_barrier_wait(&b));
  if (e == 0) SAY_ERROR("destroy", pthread_barrier_destroy(&b));
}

static const char* c11_name(int r) {
  return r == thrd_success ? "success" : r == thrd_busy ? "busy" : r == thrd_timedout ? "timedout" : r == thrd_error ? "error" : "nomem";
}
static int c11_try(void* v) {
  int r = mtx_trylock(v);
  if (r == thrd_success) mtx_unlock(v);
  return r * 100 + 7;
}
static void c11(struct operation* o) {
  struct locks* all = me->locks;
  static const int types[] = {mtx_plain, mtx_timed, mtx_plain | mtx_recursive, mtx_timed | mtx_recursive};
  if (!all->mtx_there) {
    all->mtx_type = types[o->a[1]];
    say(" init %d=%s", o->a[1], c11_name(mtx_init(&all->mtx, all->mtx_type)));
    all->mtx_there = true;
    all->mtx_count = 0;
  }
  struct timespec t = moment(o->a[1], CLOCK_REALTIME);
  int r = thrd_success, *count = &all->mtx_count;
  bool can = !*count || all->mtx_type & mtx_recursive;
  switch (o->a[0]) {
    case 0: r = can ? mtx_lock(&all->mtx) : mtx_trylock(&all->mtx), *count += r == thrd_success; break;
    case 1: r = mtx_trylock(&all->mtx), *count += r == thrd_success; break;
    case 2: r = mtx_timedlock(&all->mtx, &t), *count += r == thrd_success; break;
    case 3:
      if (*count) r = mtx_unlock(&all->mtx), --*count;
      break;
    case 4: {
      thrd_t thread;
      struct thread* saved = me;
      int result = -1;
      r = thrd_create(&thread, c11_try, &all->mtx);
      say(" join=%s", c11_name(thrd_join(thread, &result)));
      say(" %d %d", result, saved == me);
      break;
    }
    case 5: {
      cnd_t c;
      cnd_init(&c);
      if (*count == 1) r = cnd_timedwait(&c, &all->mtx, &t);
      cnd_destroy(&c);
      break;
    }
    default: r = thrd_sleep(&(struct timespec){0, 1000}, NULL) == 0 ? thrd_success : thrd_error; thrd_yield();
  }
  say(" %s count %d", c11_name(r), *count);
}

void locks_begin(void) {}
void locks_end(bool detached) {
  (void)detached;
  struct locks* all = me->locks;
  for (int i = 0; i < 2; i++) rw_release(i);
  if (all->spin_held) pthread_spin_unlock(&all->spin);
  all->spin_held = false;
  for (; all->mtx_count; all->mtx_count--) mtx_unlock(&all->mtx);
}

const struct kind lock_kinds[] = {{"rwlock", rwlock, 110, 1, {2, kRwCalls, 2 * kMoments, 11}, NULL},
                                  {"sem", semaphore, 70, 1, {2, 8, kMoments, 4}, NULL},
                                  {"spin", spin, 8, 1, {4}, NULL},
                                  {"once", once, 16, 1, {5}, NULL},
                                  {"barrier", barrier, 8, 1, {4, 2}, NULL},
                                  {"c11", c11, 40, 1, {7, 4}, NULL},
                                  {0}};
