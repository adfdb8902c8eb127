// SPDX-License-Identifier: MIT
// Process-shared condition variables, semaphores, barriers and read-write locks: what each call answers, timeouts, signals,
// cancellation, and threads of two processes.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct Place {
  pthread_mutex_t m;
  pthread_cond_t c;
  sem_t s, t;
  pthread_barrier_t b;
  pthread_rwlock_t l;
  atomic_long count, waiting;
  long plain;
}* o;

static void print(const char* what, int e) { printf(" %s=%s", what, e ? strerrorname_np(e) : "0"); }
static void print_errno(const char* what, int r) { print(what, r == 0 ? 0 : errno); }
static struct timespec after_ms(clockid_t clock, long ms) {
  struct timespec t;
  clock_gettime(clock, &t);
  t.tv_nsec += ms * 1000000;
  t.tv_sec += t.tv_nsec / 1000000000;
  t.tv_nsec %= 1000000000;
  return t;
}
static void make_mutex(int type, int robust, int protocol) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_settype(&a, type);
  pthread_mutexattr_setrobust(&a, robust);
  pthread_mutexattr_setprotocol(&a, protocol);
  pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  assert(pthread_mutex_init(&o->m, &a) == 0);
}
static void make_cond(clockid_t clock) {
  pthread_condattr_t a;
  pthread_condattr_init(&a);
  pthread_condattr_setclock(&a, clock);
  pthread_condattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  assert(pthread_cond_init(&o->c, &a) == 0);
}
static void make_barrier(unsigned n) {
  pthread_barrierattr_t a;
  pthread_barrierattr_init(&a);
  pthread_barrierattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  assert(pthread_barrier_init(&o->b, &a, n) == 0);
}
static void make_rwlock(int kind) {
  pthread_rwlockattr_t a;
  pthread_rwlockattr_init(&a);
  pthread_rwlockattr_setkind_np(&a, kind);
  pthread_rwlockattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  assert(pthread_rwlock_init(&o->l, &a) == 0);
}

// ---- conditions ----

static void unlock(void* p) {
  // The waiter has the mutex when its cleanup handlers run.
  atomic_long* ended = p;
  assert(pthread_mutex_trylock(&o->m) != 0 || (o->m.__data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE);
  if ((o->m.__data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE) assert(pthread_mutex_unlock(&o->m) == 0);
  assert(pthread_mutex_unlock(&o->m) == 0);
  ++*ended;
}
static atomic_long ended;
static void* wait_for_ever(void* p) {
  struct timespec far = after_ms(CLOCK_REALTIME, 1000000);
  assert(pthread_mutex_lock(&o->m) == 0);
  pthread_cleanup_push(unlock, &ended);
  o->waiting++;
  for (;;) p ? pthread_cond_wait(&o->c, &o->m) : pthread_cond_timedwait(&o->c, &o->m, &far);
  pthread_cleanup_pop(1);
}
static void cond_cases(int type, int robust, int protocol) {
  struct timespec past = {0, 0}, bad = {0, -1}, soon = after_ms(CLOCK_REALTIME, 3), mono = after_ms(CLOCK_MONOTONIC, 3);
  printf("cond, type %d robust %d protocol %d:", type, robust, protocol);
  make_mutex(type, robust, protocol);
  make_cond(CLOCK_REALTIME);
  print("lock", pthread_mutex_lock(&o->m));
  print("past", pthread_cond_timedwait(&o->c, &o->m, &past));
  print("bad", pthread_cond_timedwait(&o->c, &o->m, &bad));
  print("soon", pthread_cond_timedwait(&o->c, &o->m, &soon));
  print("clock", pthread_cond_clockwait(&o->c, &o->m, CLOCK_MONOTONIC, &mono));
  print("bad clock", pthread_cond_clockwait(&o->c, &o->m, CLOCK_PROCESS_CPUTIME_ID, &mono));
  print("unlock", pthread_mutex_unlock(&o->m));
  if (type == PTHREAD_MUTEX_ERRORCHECK || robust) print("not owned", pthread_cond_timedwait(&o->c, &o->m, &past));
  print("signal", pthread_cond_signal(&o->c));
  print("broadcast", pthread_cond_broadcast(&o->c));
  // Threads are cancelled while they wait, some of them after they were woken.
  pthread_t t[8];
  ended = o->waiting = 0;
  for (int i = 0; i < 8; i++) pthread_create(&t[i], NULL, wait_for_ever, i % 2 ? &t : NULL);
  while (o->waiting < 8) usleep(100);
  pthread_mutex_lock(&o->m);  // now the last one waits, too
  pthread_cond_signal(&o->c);
  pthread_cond_signal(&o->c);
  pthread_mutex_unlock(&o->m);
  for (int i = 0; i < 8; i++) assert(pthread_cancel(t[i]) == 0);
  for (int i = 0; i < 8; i++) {
    void* result;
    pthread_join(t[i], &result);
    assert(result == PTHREAD_CANCELED);
  }
  printf(" %ld cancelled", ended);
  print("try", pthread_mutex_trylock(&o->m));
  print("unlock", pthread_mutex_unlock(&o->m));
  print("destroy", pthread_cond_destroy(&o->c));
  puts("");
}

// ---- semaphores ----

static atomic_int caught;
static void catch (int sig) { caught += sig == SIGUSR1; }
static void* interrupted(void* p) {
  struct timespec far = after_ms(CLOCK_REALTIME, 1000000);
  o->waiting = 1;
  int r = p ? sem_wait(&o->s) : sem_timedwait(&o->s, &far);
  return r == 0 ? NULL : (void*)(long)errno;
}
static void* cancelled(void* p) {
  if (p) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  o->waiting = 1;
  if (p)
    while (o->waiting < 2) sched_yield();
  if (p) pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  sem_wait(&o->s);
  return NULL;
}
static void semaphore_cases(void) {
  struct timespec past = {0, 0}, bad = {0, -1}, soon = after_ms(CLOCK_REALTIME, 3), mono = after_ms(CLOCK_MONOTONIC, 3);
  printf("semaphore:");
  int value;
  assert(sem_init(&o->s, 1, 1) == 0);
  print_errno("wait", sem_wait(&o->s));
  print_errno("try", sem_trywait(&o->s));
  print_errno("past", sem_timedwait(&o->s, &past));
  print_errno("bad", sem_timedwait(&o->s, &bad));
  print_errno("soon", sem_timedwait(&o->s, &soon));
  print_errno("clock", sem_clockwait(&o->s, CLOCK_MONOTONIC, &mono));
  print_errno("bad clock", sem_clockwait(&o->s, CLOCK_PROCESS_CPUTIME_ID, &mono));
  print_errno("post", sem_post(&o->s));
  sem_getvalue(&o->s, &value);
  printf(" %d", value);
  print_errno("bad", sem_timedwait(&o->s, &bad));
  print_errno("wait", sem_wait(&o->s));
  print_errno("big", sem_init(&o->t, 1, SEM_VALUE_MAX));
  print_errno("post", sem_post(&o->t));
  print_errno("bigger", sem_init(&o->t, 1, SEM_VALUE_MAX + 1u));
  struct sigaction a = {.sa_handler = catch};
  sigaction(SIGUSR1, &a, NULL);
  for (int i = 0; i < 2; i++) {
    pthread_t t;
    void* result;
    o->waiting = 0;
    caught = 0;
    pthread_create(&t, NULL, interrupted, i ? &t : NULL);
    while (!o->waiting) usleep(100);
    usleep(2000);
    // Repeated until the thread waits, since a signal that comes before the wait ends nothing.
    do {
      pthread_kill(t, SIGUSR1);
      usleep(1000);
    } while (pthread_tryjoin_np(t, &result) == EBUSY);
    print("interrupted", (int)(long)result);
    if (!caught) printf(" not caught");
  }
  for (int i = 0; i < 2; i++) {
    pthread_t t;
    void* result;
    o->waiting = 0;
    if (i) sem_post(&o->s);  // the wait is cancelled though there is a permit
    pthread_create(&t, NULL, cancelled, i ? &t : NULL);
    while (!o->waiting) usleep(100);
    if (!i) usleep(1000);
    pthread_cancel(t);
    o->waiting = 2;
    pthread_join(t, &result);
    printf(" %s", result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
  }
  sem_getvalue(&o->s, &value);
  printf(" %d\n", value);
}

// ---- read-write locks ----

enum RwCall { kRd, kWr, kTryRd, kTryWr, kTimedRd, kTimedWr, kClockRd, kClockWr, kRwCalls };
static int rw_call(enum RwCall c) {
  struct timespec soon = after_ms(CLOCK_REALTIME, 2), mono = after_ms(CLOCK_MONOTONIC, 2);
  switch (c) {
    case kRd: return pthread_rwlock_rdlock(&o->l);
    case kWr: return pthread_rwlock_wrlock(&o->l);
    case kTryRd: return pthread_rwlock_tryrdlock(&o->l);
    case kTryWr: return pthread_rwlock_trywrlock(&o->l);
    case kTimedRd: return pthread_rwlock_timedrdlock(&o->l, &soon);
    case kTimedWr: return pthread_rwlock_timedwrlock(&o->l, &soon);
    case kClockRd: return pthread_rwlock_clockrdlock(&o->l, CLOCK_MONOTONIC, &mono);
    case kClockWr: return pthread_rwlock_clockwrlock(&o->l, CLOCK_MONOTONIC, &mono);
    default: return -1;
  }
}
static void* rw_other(void* p) {
  int e = rw_call((enum RwCall)(long)p);
  if (e == 0) assert(pthread_rwlock_unlock(&o->l) == 0);
  return (void*)(long)e;
}
static void* rwlock_cases(void* p) {
  for (int kind = 0; kind < 3; kind++) {
    make_rwlock(kind);
    for (int mine = kRd; mine <= kWr; mine++) {
      printf("rwlock, kind %d mine %d:", kind, mine);
      print("lock", rw_call(mine));
      for (int c = 0; c < kRwCalls; c++) {
        if (mine == kRd && c % 2 == 1 && c != kTryWr && c != kTimedWr && c != kClockWr) continue;  // the caller would wait for itself
        int e = rw_call(c);
        print("own", e);
        if (e == 0) assert(pthread_rwlock_unlock(&o->l) == 0);
      }
      for (int c = kTryRd; c < kRwCalls; c++) {
        pthread_t t;
        void* e;
        pthread_create(&t, NULL, rw_other, (void*)(long)c);
        pthread_join(t, &e);
        print("other", (int)(long)e);
      }
      print("unlock", pthread_rwlock_unlock(&o->l));
      print("bad", pthread_rwlock_timedrdlock(&o->l, &(struct timespec){0, -1}));
      print("bad", pthread_rwlock_timedwrlock(&o->l, &(struct timespec){0, -1}));
      print("clock", pthread_rwlock_clockrdlock(&o->l, CLOCK_PROCESS_CPUTIME_ID, &(struct timespec){0, 0}));
      print("clock", pthread_rwlock_clockwrlock(&o->l, CLOCK_PROCESS_CPUTIME_ID, &(struct timespec){0, 0}));
      puts("");
    }
    print("destroy", pthread_rwlock_destroy(&o->l));
  }
  puts("");
  return p;
}

// ---- two processes ----

enum { kThreads = 6, kRounds = 200 };
static void* both(void* p) {
  long me = (long)p;
  for (int i = 0; i < kRounds; i++) {
    int write = (i + me) % 3 == 0;
    int e = write ? pthread_rwlock_wrlock(&o->l) : pthread_rwlock_rdlock(&o->l);
    assert(e == 0);
    if (write) o->plain++;
    if (i % 8 == 0) usleep(30);
    assert(pthread_rwlock_unlock(&o->l) == 0);
    if (i % 20 == 0) {
      e = pthread_barrier_wait(&o->b);
      if (e) {
        assert(e == PTHREAD_BARRIER_SERIAL_THREAD);
        o->count++;
      }
    }
    // Each thread plays ping-pong with any thread that it meets.
    assert(sem_post(me % 2 ? &o->s : &o->t) == 0);
    while (sem_wait(me % 2 ? &o->t : &o->s) != 0) assert(errno == EINTR);
  }
  return p;
}
static void both_all(void) {
  pthread_t t[kThreads];
  for (long i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, both, (void*)i);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
}
static void two_processes(int kind) {
  make_rwlock(kind);
  make_barrier(2 * kThreads);
  sem_init(&o->s, 1, 0);
  sem_init(&o->t, 1, 0);
  o->count = o->plain = 0;
  pid_t child = fork();
  if (child == 0) {
    both_all();
    _exit(0);
  }
  both_all();
  int status;
  assert(waitpid(child, &status, 0) == child && status == 0);
  print("destroy", pthread_barrier_destroy(&o->b));
  printf(" kind %d: %ld written, %ld rounds\n", kind, o->plain, o->count);
}

int main() {
  o = mmap(NULL, sizeof *o, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int robust = 0; robust < 2; robust++)
    for (int protocol = 0; protocol < 2; protocol++)
      for (int type = 0; type < 4; type++) cond_cases(type, robust, protocol);
  semaphore_cases();
  rwlock_cases(NULL);
  pthread_t t;
  pthread_create(&t, NULL, rwlock_cases, NULL);
  pthread_join(t, NULL);
  for (int kind = 0; kind < 3; kind++) two_processes(kind);
  return 0;
}
