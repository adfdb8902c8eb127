// SPDX-License-Identifier: MIT
// Several threads use one object, in ways whose result no schedule changes: sums, counts, and who gets what in turn.
#include "differential.h"

struct shared {
  pthread_mutex_t mutex;
  pthread_spinlock_t spin;
  pthread_rwlock_t rwlock;
  pthread_cond_t cond, other;
  pthread_barrier_t barrier;
  pthread_once_t once;
  sem_t sems[kThreads];
  mtx_t mtx;
  long plain, copy;
  atomic_long count, sum;
  int turn, waiting, queue[4], head, tail, ended;
  pthread_t handles[kThreads];
};
static struct shared* of(struct operation* o) { return shared_of(o); }

static void prepare(struct operation* o) {
  struct shared* s = of(o);
  static_assert(sizeof *s + sizeof(pthread_barrier_t) < kShared, "");
  int kind = o->a[0];
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_settype(&a, kind % 4);
  if (kind == 4) pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_INHERIT);
  if (kind == 5) pthread_mutexattr_setrobust(&a, 1);
  if (kind == 6) pthread_mutexattr_setpshared(&a, 1);
  pthread_mutex_init(&s->mutex, &a);
  pthread_spin_init(&s->spin, 0);
  pthread_rwlockattr_t r;
  pthread_rwlockattr_init(&r);
  pthread_rwlockattr_setkind_np(&r, o->a[2] % 3);
  pthread_rwlock_init(&s->rwlock, &r);
  pthread_condattr_t c;
  pthread_condattr_init(&c);
  pthread_condattr_setclock(&c, clock_of(o->a[2] % 2));
  pthread_condattr_setpshared(&c, kind == 6);
  pthread_cond_init(&s->cond, &c);
  pthread_cond_init(&s->other, &c);
  pthread_barrier_init(&s->barrier, NULL, members(o));
  s->once = (pthread_once_t)PTHREAD_ONCE_INIT;
  for (int i = 0; i < kThreads; i++) sem_init(&s->sems[i], kind == 6, 0);
  mtx_init(&s->mtx, mtx_timed);
}

// ---- a counter under a lock: 0 to 6 are kinds of mutexes ----

enum { kSpin = 7, kWriteLock, kSemaphore, kC11, kLocks };
static void lock(struct shared* s, int kind, int how) {
  int e = 0;
  if (kind < kSpin) {
    if (how == 0) e = pthread_mutex_lock(&s->mutex);
    if (how == 1)
      while ((e = pthread_mutex_trylock(&s->mutex)) == EBUSY) sched_yield();
    if (how == 2) e = pthread_mutex_timedlock(&s->mutex, &far_away);
    if (how == 3) e = pthread_mutex_clocklock(&s->mutex, CLOCK_MONOTONIC, &far_away);
  } else if (kind == kSpin) {
    if (how == 1)
      while (pthread_spin_trylock(&s->spin) == EBUSY) sched_yield();
    else pthread_spin_lock(&s->spin);
  } else if (kind == kWriteLock) {
    e = how ? pthread_rwlock_timedwrlock(&s->rwlock, &far_away) : pthread_rwlock_wrlock(&s->rwlock);
  } else if (kind == kSemaphore) {
    e = how ? sem_timedwait(&s->sems[0], &far_away) : sem_wait(&s->sems[0]);
  } else {
    e = how ? mtx_timedlock(&s->mtx, &far_away) : mtx_lock(&s->mtx);
  }
  if (e) SAY_ERROR("lock", e);
}
static void unlock(struct shared* s, int kind) {
  int e = kind < kSpin         ? pthread_mutex_unlock(&s->mutex)
          : kind == kSpin      ? pthread_spin_unlock(&s->spin)
          : kind == kWriteLock ? pthread_rwlock_unlock(&s->rwlock)
          : kind == kSemaphore ? sem_post(&s->sems[0])
                               : mtx_unlock(&s->mtx);
  if (e) SAY_ERROR("unlock", e);
}
static void counter(struct operation* o) {
  struct shared* s = of(o);
  int kind = o->a[0], rounds = 1 + o->a[1];
  if (rank_in(o) == 0 && kind == kSemaphore) sem_post(&s->sems[0]);
  for (int i = 0; i < rounds; i++) {
    lock(s, kind, (o->a[2] + rank_in(o)) % 4);
    long seen = s->plain;
    if (o->a[3] && i % 8 == 0 && kind != kSpin) sched_yield();
    s->plain = seen + 1;
    unlock(s, kind);
  }
  meet(o);
  say(" %ld", s->plain);
}

// ---- a token in turn ----

static void take_semaphore(sem_t* s, int how) {
  int e = how == 0 ? sem_wait(s) : how == 1 ? sem_timedwait(s, &far_away) : sem_clockwait(s, CLOCK_MONOTONIC, &far_away);
  if (e) SAY_ERRNO("wait", e);
}
static void turns(struct operation* o) {
  struct shared* s = of(o);
  int me_in = rank_in(o), n = members(o), laps = 1 + o->a[1];
  long sum = 0;
  for (int i = 0; i < laps; i++) {
    if (o->a[3] == 0) {  // each has a semaphore
      if (me_in || i) take_semaphore(&s->sems[me_in], o->a[2]);
      sum += s->plain++;
      sem_post(&s->sems[(me_in + 1) % n]);
      continue;
    }
    pthread_mutex_lock(&s->mutex);  // all wait for one condition
    while (s->turn != me_in) {
      int e = o->a[2] == 0   ? pthread_cond_wait(&s->cond, &s->mutex)
              : o->a[2] == 1 ? pthread_cond_timedwait(&s->cond, &s->mutex, &far_away)
                             : pthread_cond_clockwait(&s->cond, &s->mutex, CLOCK_MONOTONIC, &far_away);
      if (e) SAY_ERROR("wait", e);
    }
    sum += s->plain++;
    s->turn = (me_in + 1) % n;
    if (o->a[3] == 1) pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->mutex);
    if (o->a[3] == 2) pthread_cond_broadcast(&s->cond);
  }
  say(" %ld", sum);
}

// ---- a queue with a bound: even members put, odd ones take ----

static void queue(struct operation* o) {
  struct shared* s = of(o);
  int rank = rank_in(o), n = members(o), each = 1 + o->a[1], putters = (n + 1) / 2;
  if (rank % 2 == 0) {
    for (int i = 0; i < each; i++) {
      pthread_mutex_lock(&s->mutex);
      while (s->tail - s->head == 4) pthread_cond_wait(&s->other, &s->mutex);
      s->queue[s->tail++ % 4] = rank * 1000 + i;
      pthread_cond_signal(&s->cond);
      pthread_mutex_unlock(&s->mutex);
    }
    pthread_mutex_lock(&s->mutex);
    if (++s->ended == putters) pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->mutex);
  } else {
    pthread_mutex_lock(&s->mutex);
    for (;;) {
      while (s->tail == s->head && s->ended < putters) pthread_cond_wait(&s->cond, &s->mutex);
      if (s->tail == s->head) break;
      s->plain += s->queue[s->head++ % 4];
      s->count++;
      pthread_cond_signal(&s->other);
    }
    pthread_mutex_unlock(&s->mutex);
  }
  meet(o);
  say(" sum %ld count %ld", s->plain, s->count);
}

// ---- all wake up, and as many as were signalled ----

static void broadcasts(struct operation* o) {
  struct shared* s = of(o);
  int n = members(o), rounds = 1 + o->a[1] / 4;
  for (int i = 0; i < rounds; i++) {
    pthread_mutex_lock(&s->mutex);
    int round = s->turn;
    if (++s->waiting == n) {
      s->waiting = 0;
      s->turn++;
      if (o->a[3]) pthread_cond_broadcast(&s->cond);
      else
        for (int k = 1; k < n; k++) pthread_cond_signal(&s->cond);
    } else {
      while (s->turn == round) pthread_cond_wait(&s->cond, &s->mutex);
    }
    s->plain++;
    pthread_mutex_unlock(&s->mutex);
  }
  meet(o);
  say(" %ld", s->plain);
}

static void barriers(struct operation* o) {
  struct shared* s = of(o);
  int rounds = 1 + o->a[1];
  for (int i = 0; i < rounds; i++) {
    s->count++;
    int e = pthread_barrier_wait(&s->barrier);
    if (e == PTHREAD_BARRIER_SERIAL_THREAD) s->sum++;
    else if (e) SAY_ERROR("wait", e);
    if (s->count < (i + 1L) * members(o)) say(" early");
    if (i % 3 == 0) sched_yield();
  }
  meet(o);
  say(" %ld serial %ld", s->count, s->sum);
}

static void readers_and_writers(struct operation* o) {
  struct shared* s = of(o);
  int rounds = 1 + o->a[1];
  for (int i = 0; i < rounds; i++) {
    if ((i + rank_in(o)) % 3 == 0) {
      pthread_rwlock_wrlock(&s->rwlock);
      s->plain++;
      if (o->a[3]) sched_yield();
      s->copy++;
    } else {
      int e = o->a[3] ? pthread_rwlock_timedrdlock(&s->rwlock, &far_away) : pthread_rwlock_rdlock(&s->rwlock);
      if (e) SAY_ERROR("rdlock", e);
      if (s->plain != s->copy) say(" torn");
    }
    pthread_rwlock_unlock(&s->rwlock);
  }
  meet(o);
  say(" %ld %ld", s->plain, s->copy);
}

static _Thread_local struct shared* initialises;
static _Thread_local int slow;
static void initialise(void) {
  initialises->plain++;
  if (slow == 1) sched_yield();
  if (slow == 2) nap(50);
  initialises->copy = 7;
}
static void initialise_and_end(void) {
  initialises->count++;
  pthread_exit(NULL);
}
static void* ends_in_once(void* v) {
  initialises = v;
  pthread_once(&initialises->once, initialise_and_end);
  return NULL;
}
static void once(struct operation* o) {
  struct shared* s = of(o);
  if (o->a[3]) elsewhere(ends_in_once, s);  // the others have to run it again
  initialises = s;
  slow = o->a[2];
  pthread_once(&s->once, initialise);
  say(" copy %ld", s->copy);
  meet(o);
  say(" run %ld", s->plain);
}

// ---- a robust mutex whose owners end ----

static void* lock_and_end(void* v) {
  struct shared* s = v;
  int e = pthread_mutex_lock(&s->mutex);
  if (e == EOWNERDEAD) {
    s->plain++;
    pthread_mutex_consistent(&s->mutex);
  } else if (e) {
    s->copy++;
  }
  return NULL;
}
static void prepare_robust(struct operation* o) {
  prepare(o);
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setrobust(&a, 1);
  pthread_mutexattr_settype(&a, o->a[0]);
  if (o->a[2]) pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_INHERIT);
  pthread_mutex_init(&of(o)->mutex, &a);
}
static void robust(struct operation* o) {
  struct shared* s = of(o);
  for (int i = 0; i <= o->a[1]; i++) elsewhere(lock_and_end, s);
  meet(o);
  // All but the first one have found a dead owner.
  if (rank_in(o) == 0) say(" dead %ld errors %ld", s->plain, s->copy);
}

// ---- joins and signals around the circle ----

static void* ends_soon(void* v) {
  struct shared* s = v;
  s->count++;
  return (void*)17L;
}
static void join_of_others(struct operation* o) {
  struct shared* s = of(o);
  int rank = rank_in(o), n = members(o);
  s->handles[rank] = start_helper(ends_soon, s, NULL);
  meet(o);
  void* value = NULL;
  SAY_ERROR("join", pthread_join(s->handles[(rank + 1) % n], &value));
  meet(o);
  say(" %ld %ld", (long)value, s->count);
}

static void signal_circle(struct operation* o) {
  struct shared* s = of(o);
  int rank = rank_in(o), n = members(o), next = 0;
  for (int i = 0, k = 0; i < kThreads; i++)
    if (o->threads & 1u << i && k++ == (rank + 1) % n) next = i;
  s->handles[rank] = pthread_self();
  meet(o);
  int sum = 0;
  for (int i = 0; i <= o->a[1] / 2; i++) {
    siginfo_t info = {0};
    SAY_ERROR("queue", pthread_sigqueue(s->handles[(rank + 1) % n], OWN_SIGNAL(next), (union sigval){.sival_int = i + rank}));
    if (o->a[3] == 0) sigwaitinfo(&me->own_signal, &info);
    else if (sigtimedwait(&me->own_signal, &info, &(struct timespec){100, 0}) < 0) say(" %s", error_name(errno));
    sum += info.si_value.sival_int;
  }
  say(" sum %d", sum);
  meet(o);
}

// Handlers run in the middle of locks and waits; no count is lost.
static void interrupted_counter(struct operation* o) {
  struct shared* s = of(o);
  int rank = rank_in(o), n = members(o);
  s->handles[rank] = pthread_self();
  meet(o);
  for (int i = 0; i <= o->a[1]; i++) {
    pthread_mutex_lock(&s->mutex);
    s->plain++;
    if (i % 4 == 0) pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->mutex);
    if (i % 8 == 0) pthread_kill(s->handles[(rank + 1) % n], SIGUSR2);
  }
  meet(o);
  sched_yield();
  sigset_t set, old;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, &old);
  while (sigtimedwait(&set, NULL, &(struct timespec){0, 0}) > 0) {
  }
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  forget_caught();
  say(" %ld", s->plain);
}

const struct kind together_kinds[] = {{"counter", counter, 50, 2, {kLocks, 60, 4, 2}, prepare},
                                      {"turns", turns, 30, 2, {7, 20, 3, 3}, prepare},
                                      {"queue", queue, 25, 2, {7, 30, 2}, prepare},
                                      {"broadcast", broadcasts, 20, 2, {7, 40, 2, 2}, prepare},
                                      {"barrier.wait", barriers, 20, 2, {1, 20}, prepare},
                                      {"readers", readers_and_writers, 20, 2, {1, 40, 3, 2}, prepare},
                                      {"once.all", once, 15, 2, {1, 1, 3, 2}, prepare},
                                      {"robust.all", robust, 12, 2, {4, 6, 2}, prepare_robust},
                                      {"join.others", join_of_others, 12, 2, {1}, prepare},
                                      {"circle", signal_circle, 20, 2, {1, 12, 1, 2}, prepare},
                                      {"interrupted", interrupted_counter, 15, 2, {7, 40}, prepare},
                                      {0}};
