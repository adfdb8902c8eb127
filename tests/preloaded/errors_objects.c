// SPDX-License-Identifier: MIT
// Barriers, spin locks, pthread_once, and semaphores with and without names.
#include "errors.h"

static void* wait_at(void* b) {
  pthread_barrier_wait(b);
  return b;
}
static void barriers(void) {
  pthread_barrier_t b;
  pthread_barrierattr_t a;
  CASE("", pthread_barrierattr_init, &a);
  for (int v = -1; v < 4; v++) {
    int now = 77;
    CASE(format("%d", v), pthread_barrierattr_setpshared, &a, v);
    CASE(format("after %d", v), pthread_barrierattr_getpshared, &a, &now);
    printf("shared %d\n", now);
  }
  for (int shared = 0; shared < 2; shared++) {
    pthread_barrierattr_setpshared(&a, shared);
    static const unsigned counts[] = {0, 1, 2, INT_MAX, INT_MAX + 1u, UINT_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
      if (CASE(format("%s%u", shared ? "shared, " : "", counts[i]), pthread_barrier_init, &b, &a, counts[i]) == 0 && counts[i] != 1)
        CASE(format("%s%u", shared ? "shared, " : "", counts[i]), pthread_barrier_destroy, &b);
      else if (counts[i] == 1)
        for (int k = 0; k < 3; k++) CASE(format("%salone", shared ? "shared, " : ""), pthread_barrier_wait, &b);
  }
  CASE("", pthread_barrierattr_destroy, &a);
  CASE("no attributes", pthread_barrier_init, &b, NULL, 2);
  pthread_t t;
  pthread_create(&t, NULL, wait_at, &b);
  int r = pthread_barrier_wait(&b);
  show("pthread_barrier_wait", "one of two", r == 0 || r == PTHREAD_BARRIER_SERIAL_THREAD ? 0 : r);
  pthread_join(t, NULL);
  CASE("", pthread_barrier_destroy, &b);
}

static void* try_spin(void* l) {
  CASE("another's", pthread_spin_trylock, l);
  return l;
}
static void spin_locks(void) {
  pthread_spinlock_t l;
  for (int v = -1; v < 3; v++) CASE(format("%d", v), pthread_spin_init, &l, v);
  CASE("free", pthread_spin_lock, &l);
  CASE("mine", pthread_spin_trylock, &l);
  elsewhere(try_spin, (void*)&l);
  CASE("mine", pthread_spin_unlock, &l);
  CASE("free", pthread_spin_trylock, &l);
  CASE("mine", pthread_spin_unlock, &l);
  CASE("free", pthread_spin_destroy, &l);
}

static int times_run;
static void run(void) { times_run++; }
static void* run_and_exit(void* p);
static void exits(void) { pthread_exit(NULL); }
static pthread_once_t broken;
static void* run_and_exit(void* p) {
  pthread_once(&broken, exits);
  return p;
}
static void once(void) {
  pthread_once_t o = PTHREAD_ONCE_INIT;
  times_run = 0;
  for (int i = 0; i < 2; i++) CASE(i ? "done" : "new", pthread_once, &o, run);
  broken = (pthread_once_t)PTHREAD_ONCE_INIT;
  elsewhere(run_and_exit, NULL);
  CASE("its thread ended", pthread_once, &broken, run);
  printf("run %d\n", times_run);
}

static void semaphore(sem_t* s, const char* kind) {
  int v = 77;
  FAILS(format("%s, 1", kind), sem_trywait, s);
  FAILS(format("%s, 0", kind), sem_trywait, s);
  FAILS(format("%s, 0", kind), sem_getvalue, s, &v);
  printf("value %d\n", v);
  for (int one = 0; one < 2; one++) {
    for (size_t i = 0; i < MOMENTS; i++) {
      const char* state = format("%s, %d, %s", kind, one, moments[i].name);
      if (one) sem_post(s);
      FAILS(state, sem_timedwait, s, moments[i].t);
      while (sem_trywait(s) == 0) {
      }
      for (size_t k = 0; k < CLOCKS; k++) {
        if (one) sem_post(s);
        FAILS(format("%s, clock %d", state, clocks[k]), sem_clockwait, s, clocks[k], moments[i].t);
        while (sem_trywait(s) == 0) {
        }
      }
    }
  }
  struct timespec t = soon(CLOCK_REALTIME);
  FAILS(format("%s, 0, soon", kind), sem_timedwait, s, &t);
  FAILS(kind, sem_post, s);
  FAILS(kind, sem_wait, s);
}

static void semaphores(void) {
  sem_t s;
  for (int shared = 0; shared < 3; shared++) {
    static const unsigned values[] = {0, 1, SEM_VALUE_MAX, SEM_VALUE_MAX + 1u, UINT_MAX};
    for (int i = 0; i < 5; i++) FAILS(format("shared %d, %u", shared, values[i]), sem_init, &s, shared, values[i]);
    sem_init(&s, shared, SEM_VALUE_MAX);
    int v;
    FAILS("most", sem_post, &s);
    FAILS("most", sem_getvalue, &s, &v);
    printf("value %d\n", v);
    sem_init(&s, shared, SEM_VALUE_MAX - 1);
    FAILS("most but one", sem_post, &s);
    FAILS("most", sem_post, &s);
    FAILS("most", sem_wait, &s);
    sem_init(&s, shared, 1);
    semaphore(&s, format("shared %d", shared));
    FAILS("", sem_destroy, &s);
  }
}

static sem_t* opened(const char* state, sem_t* s) {
  show("sem_open", state, s == SEM_FAILED ? errno : 0);
  return s;
}
#define OPENS(state, ...) opened(state, (errno = 0, sem_open(__VA_ARGS__)))
static void names(void) {
  char name[64], long_name[400];
  snprintf(name, sizeof name, "/errors-objects-%d", getpid());
  memset(long_name, 'x', sizeof long_name);
  long_name[0] = '/';
  long_name[252] = 0;  // with libc's prefix, longer than a file's name may be
  FAILS("absent", sem_unlink, name);
  OPENS("absent", name, 0);
  OPENS("absent, exclusive only", name, O_EXCL);
  OPENS("empty name", "", O_CREAT, 0600, 0);
  OPENS("only a slash", "/", O_CREAT, 0600, 0);
  OPENS("slash inside", "/a/b", O_CREAT, 0600, 0);
  OPENS("long name", long_name, O_CREAT, 0600, 0);
  OPENS("long name, absent", long_name, 0);
  OPENS("large value", name, O_CREAT, 0600, SEM_VALUE_MAX + 1u);
  FAILS("empty name", sem_unlink, "");
  FAILS("slash inside", sem_unlink, "/a/b");
  FAILS("long name", sem_unlink, long_name);
  sem_t* s = OPENS("new", name, O_CREAT | O_EXCL, 0600, 1);
  assert(s != SEM_FAILED);
  OPENS("exclusive", name, O_CREAT | O_EXCL, 0600, 1);
  sem_t* same = OPENS("again", name, 0);
  printf("same %d\n", same == s);
  OPENS("again, to be made", name, O_CREAT, 0600, 7);
  same = OPENS("without the slash", name + 1, 0);
  printf("same %d\n", same == s);
  FAILS("open", sem_close, same);
  semaphore(s, "named");
  for (int i = 0; i < 2; i++) FAILS("open", sem_close, s);
  FAILS("there", sem_unlink, name);
  FAILS("gone", sem_unlink, name);
  FAILS("open", sem_post, s);
  FAILS("unlinked", sem_close, s);
  sem_t other;
  FAILS("not open", sem_close, s);
  FAILS("no named one", sem_close, &other);
}

// Signals without SA_RESTART end these waits.
static volatile int interrupting;
static void on_signal(int sig) {}
static void* interrupts(void* t) {
  while (interrupting) {
    pthread_kill(*(pthread_t*)t, SIGUSR1);
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
  return t;
}
static void interrupted(void) {
  struct sigaction a = {.sa_handler = on_signal};
  sigaction(SIGUSR1, &a, NULL);
  sem_t s;
  sem_init(&s, 0, 0);
  pthread_t me = pthread_self(), t;
  interrupting = 1;
  assert(pthread_create(&t, NULL, interrupts, &me) == 0);
  struct timespec minute = {60, 0}, later;
  FAILS("interrupted", sem_wait, &s);
  clock_gettime(CLOCK_REALTIME, &later);
  later.tv_sec += 60;
  FAILS("interrupted", sem_timedwait, &s, &later);
  FAILS("interrupted", sem_clockwait, &s, CLOCK_REALTIME, &later);
  FAILS("interrupted", nanosleep, &minute, NULL);
  CASE("interrupted", clock_nanosleep, CLOCK_MONOTONIC, 0, &minute, NULL);
  CASE("interrupted", clock_nanosleep, CLOCK_REALTIME, TIMER_ABSTIME, &later, NULL);
  show_value("thrd_sleep", "interrupted", thrd_sleep(&minute, NULL));
  interrupting = 0;
  pthread_join(t, NULL);
}

static void sleeping(void) {
  for (size_t i = 0; i < MOMENTS; i++) {
    if (moments[i].t != &past) FAILS(moments[i].name, nanosleep, moments[i].t, NULL);
    for (size_t k = 0; k < CLOCKS; k++) {
      if (clocks[k] == CLOCK_PROCESS_CPUTIME_ID) continue;
      const char* state = format("clock %d, %s", clocks[k], moments[i].name);
      if (moments[i].t != &past) CASE(state, clock_nanosleep, clocks[k], 0, moments[i].t, NULL);
      CASE(format("%s, absolute", state), clock_nanosleep, clocks[k], TIMER_ABSTIME, moments[i].t, NULL);
    }
  }
}

static void cases(void) {
  interrupted();
  sleeping();
  barriers();
  spin_locks();
  once();
  semaphores();
  names();
}
