// SPDX-License-Identifier: MIT
// Threads: creation, joining in every state, detaching, cancellation, signals, names, keys.
#include "errors.h"

static sem_t go, gone;
static volatile int ended;
static void* nothing(void* p) { return p; }
static void* waits(void* p) {
  while (sem_wait(&go) != 0) {
  }
  sem_post(&gone);
  return p;
}
// Ends the thread that waits, so that the next one gets its own post.
static void let_go(void) {
  sem_post(&go);
  while (sem_wait(&gone) != 0) {
  }
}
static void* says_ended(void* p) {
  ended = 1;
  return p;
}
static pthread_t start(void* (*f)(void*), void* arg) {
  pthread_t t;
  assert(pthread_create(&t, NULL, f, arg) == 0);
  return t;
}
// Returns a thread that has ended and is not joined.
static pthread_t finished(void) {
  ended = 0;
  pthread_t t = start(says_ended, NULL);
  while (!ended) sched_yield();
  // No call tells that the thread has ended, unless it joins the thread.
  for (int i = 0; i < 20; i++) nanosleep(&(struct timespec){0, 1000000}, NULL);
  return t;
}

static void create(void) {
  pthread_attr_t a;
  pthread_t t;
  static const size_t large[] = {(size_t)1 << 46, (size_t)1 << 47, (size_t)1 << 62};
  for (int i = 0; i < 3; i++) {
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, large[i]);
    CASE(format("stack of %zu", large[i]), pthread_create, &t, &a, nothing, NULL);
    pthread_attr_destroy(&a);
  }
  pthread_attr_init(&a);
  pthread_attr_setinheritsched(&a, PTHREAD_EXPLICIT_SCHED);
  CASE("explicitly as all", pthread_create, &t, &a, nothing, NULL);
  CASE("", pthread_join, t, NULL);
  pthread_attr_setschedpolicy(&a, SCHED_FIFO);
  CASE("FIFO, priority 0", pthread_create, &t, &a, nothing, NULL);
  pthread_attr_destroy(&a);
  cpu_set_t none;
  CPU_ZERO(&none);
  CPU_SET(1000, &none);
  pthread_attr_init(&a);
  pthread_attr_setaffinity_np(&a, sizeof none, &none);
  CASE("a CPU that is not there", pthread_create, &t, &a, nothing, NULL);
  pthread_attr_destroy(&a);
}

static void join(void) {
  void* r = NULL;
  pthread_t t = start(waits, &r);
  CASE("running", pthread_tryjoin_np, t, &r);
  // Invalid times are left out, since NPTL spins on them until the thread ends.
  for (size_t i = 0; i < 2; i++) {
    CASE(format("running, %s", moments[i].name), pthread_timedjoin_np, t, &r, moments[i].t);
    for (size_t k = 0; k < CLOCKS; k++)
      CASE(format("running, %s, clock %d", moments[i].name, clocks[k]), pthread_clockjoin_np, t, &r, clocks[k], moments[i].t);
  }
  struct timespec when = soon(CLOCK_REALTIME);
  CASE("running, soon", pthread_timedjoin_np, t, &r, &when);
  CASE("running, signal 0", pthread_kill, t, 0);
  let_go();
  CASE("to its end", pthread_join, t, &r);
  printf("result %d\n", r == &r);
  t = start(nothing, &r);
  int e;
  while ((e = pthread_tryjoin_np(t, &r)) == EBUSY) sched_yield();
  show("pthread_tryjoin_np", "ended", e);
  t = start(nothing, &r);
  CASE("ended or not", pthread_timedjoin_np, t, &r, &(struct timespec){4000000000, 0});
  t = start(nothing, &r);
  CASE("ended or not, no time", pthread_timedjoin_np, t, &r, NULL);
  t = start(nothing, &r);
  CASE("ended or not, no time", pthread_clockjoin_np, t, &r, CLOCK_MONOTONIC, NULL);
  t = finished();
  CASE("ended, clock 99", pthread_clockjoin_np, t, &r, 99, &past);
  CASE("ended, passed", pthread_timedjoin_np, t, &r, &past);
  t = finished();
  CASE("ended, tv_nsec -1", pthread_timedjoin_np, t, &r, &bad_low);
  t = finished();
  CASE("ended, tv_nsec 1e9", pthread_clockjoin_np, t, &r, CLOCK_MONOTONIC, &bad_high);

  pthread_t me = pthread_self();
  CASE("self", pthread_join, me, NULL);
  CASE("self", pthread_tryjoin_np, me, NULL);
  CASE("self", pthread_timedjoin_np, me, NULL, &past);
  CASE("self", pthread_clockjoin_np, me, NULL, CLOCK_MONOTONIC, &past);
  CASE("self, tv_nsec 1e9", pthread_timedjoin_np, me, NULL, &bad_high);
  // Threads are detached while they run.
  t = start(waits, NULL);
  CASE("running", pthread_detach, t);
  CASE("again", pthread_detach, t);
  CASE("detached", pthread_join, t, NULL);
  CASE("detached", pthread_timedjoin_np, t, NULL, &past);
  CASE("detached, tv_nsec 1e9", pthread_timedjoin_np, t, NULL, &bad_high);
  CASE("detached, clock 99", pthread_clockjoin_np, t, NULL, 99, &past);
  CASE("detached", pthread_clockjoin_np, t, NULL, CLOCK_MONOTONIC, &past);
  CASE("detached", pthread_tryjoin_np, t, NULL);
  let_go();
  // A thread is detached after its end.
  t = finished();
  CASE("ended", pthread_detach, t);
}

static void ended_threads(void) {
  pthread_t t = finished();
  clockid_t clock;
  CASE("ended", pthread_kill, t, 0);
  CASE("ended", pthread_kill, t, SIGUSR1);
  CASE("ended", pthread_cancel, t);
  show_value("pthread_gettid_np", "ended", since(42) ? tid_of(t) : -1);
  CASE("ended", pthread_getcpuclockid, t, &clock);
  CASE("ended", pthread_sigqueue, t, SIGUSR1, (union sigval){0});
  int policy;
  struct sched_param p = {0};
  CASE("ended", pthread_getschedparam, t, &policy, &p);
  CASE("ended", pthread_setschedparam, t, SCHED_OTHER, &p);
  CASE("ended", pthread_setschedprio, t, 0);
  char name[16];
  CASE("ended", pthread_setname_np, t, "a name");
  CASE("ended", pthread_getname_np, t, name, sizeof name);
  CASE("ended", pthread_join, t, NULL);
  // POSIX leaves this open. libc remembers a joined thread as long as it keeps the stack for the next thread, as it does here.
  cpu_set_t set;
  memset(&set, 255, sizeof set);
  CASE("joined", pthread_join, t, NULL);
  CASE("joined", pthread_timedjoin_np, t, NULL, &past);
  CASE("joined", pthread_clockjoin_np, t, NULL, CLOCK_MONOTONIC, &past);
  CASE("joined", pthread_detach, t);
  CASE("joined", pthread_getcpuclockid, t, &clock);
  CASE("joined", pthread_sigqueue, t, SIGUSR1, (union sigval){0});
  if (!since(43)) {  // since 2.43, libc takes it for the caller
    CASE("joined", pthread_getaffinity_np, t, sizeof set, &set);
    CASE("joined", pthread_setaffinity_np, t, sizeof set, &set);
  }
  CASE("joined", pthread_setschedparam, t, SCHED_OTHER, &p);
}

static void signals(void) {
  static const int bad[] = {-1, 65, 99, 32, 33, INT_MAX};
  pthread_t t = start(waits, NULL);
  for (int i = 0; i < 6; i++) {
    CASE(format("%d", bad[i]), pthread_kill, t, bad[i]);
    CASE(format("%d, self", bad[i]), pthread_kill, pthread_self(), bad[i]);
    CASE(format("%d", bad[i]), pthread_sigqueue, t, bad[i], (union sigval){0});
    if (bad[i] < 32 || bad[i] > 33) FAILS(format("%d", bad[i]), tgkill, getpid(), gettid(), bad[i]);
  }
  CASE("0", pthread_sigqueue, t, 0, (union sigval){0});
  FAILS("0", tgkill, getpid(), gettid(), 0);
  FAILS("tid 0", tgkill, getpid(), 0, 0);
  FAILS("tid -1", tgkill, getpid(), -1, 0);
  FAILS("group 0", tgkill, 0, gettid(), 0);
  FAILS("no such tid", tgkill, getpid(), INT_MAX, 0);
  FAILS("other group", tgkill, 1, gettid(), 0);
  sigset_t set;
  sigemptyset(&set);
  static const int hows[] = {-1, SIG_BLOCK, SIG_UNBLOCK, SIG_SETMASK, 3, 99};
  sigset_t old;
  pthread_sigmask(SIG_SETMASK, NULL, &old);
  for (int i = 0; i < 6; i++) {
    CASE(format("how %d", hows[i]), pthread_sigmask, hows[i], &set, NULL);
    CASE(format("how %d, no set", hows[i]), pthread_sigmask, hows[i], NULL, &set);
  }
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  let_go();
  pthread_join(t, NULL);
}

static void cancellation(void) {
  static const int some[] = {-1, 0, 1, 2, INT_MAX};
  for (int i = 0; i < 5; i++) {
    int old = 77;
    CASE(format("%d", some[i]), pthread_setcancelstate, some[i], &old);
    printf("old %d\n", old);
    CASE(format("%d", some[i]), pthread_setcanceltype, some[i], &old);
    printf("old %d\n", old);
  }
  CASE("none to tell", pthread_setcancelstate, PTHREAD_CANCEL_ENABLE, NULL);
  CASE("none to tell", pthread_setcanceltype, PTHREAD_CANCEL_DEFERRED, NULL);
  pthread_t t = start(waits, NULL);
  void* r;
  CASE("waiting", pthread_cancel, t);
  CASE("cancelled", pthread_join, t, &r);
  printf("cancelled %d\n", r == PTHREAD_CANCELED);
}

static void names_of(pthread_t t, const char* whose) {
  char name[64], before[16];
  pthread_getname_np(t, before, 16);
  CASE(whose, pthread_setname_np, t, "");
  CASE(whose, pthread_getname_np, t, name, sizeof name);
  printf("\"%s\"\n", name);
  CASE(format("%s, 15", whose), pthread_setname_np, t, "123456789012345");
  CASE(format("%s, 16", whose), pthread_setname_np, t, "1234567890123456");
  CASE(format("%s, 17", whose), pthread_setname_np, t, "12345678901234567");
  CASE(format("%s, with 16", whose), pthread_getname_np, t, name, 16);
  printf("\"%s\"\n", name);
  CASE(format("%s, with 15", whose), pthread_getname_np, t, name, 15);
  CASE(format("%s, with 0", whose), pthread_getname_np, t, name, 0);
  pthread_setname_np(t, before);
}
static void names(void) {
  pthread_t t = start(waits, NULL);
  names_of(t, "another");
  names_of(pthread_self(), "self");
  let_go();
  pthread_join(t, NULL);
}

static void keys(void) {
  static pthread_key_t all[2000];
  int n = 0, e = 0;
  while (n < 2000 && (e = pthread_key_create(&all[n], NULL)) == 0) n++;
  show("pthread_key_create", format("after %d", n), e);
  tss_t tss;
  C11(format("after %d", n), tss_create, &tss, NULL);
  CASE("last", pthread_setspecific, all[n - 1], &n);
  printf("value %d\n", pthread_getspecific(all[n - 1]) == &n);
  C11("last", tss_set, all[n - 1], NULL);
  printf("value %d\n", tss_get(all[n - 1]) == NULL);
  CASE("last", pthread_key_delete, all[n - 1]);
  CASE("again", pthread_key_delete, all[n - 1]);
  CASE("deleted", pthread_setspecific, all[n - 1], &n);
  C11("deleted", tss_set, all[n - 1], &n);
  CASE("no such key", pthread_key_delete, PTHREAD_KEYS_MAX);
  CASE("no such key", pthread_setspecific, PTHREAD_KEYS_MAX, &n);
  CASE("no such key", pthread_setspecific, UINT_MAX, &n);
  printf("value %d\n", pthread_getspecific(all[n - 1]) == NULL && pthread_getspecific(UINT_MAX) == NULL);
  CASE("one is free", pthread_key_create, &all[n - 1], NULL);
  for (int i = 0; i < n; i++) assert(pthread_key_delete(all[i]) == 0);
}

static void other(void) {
  CASE("-1", pthread_setconcurrency, -1);
  CASE("INT_MIN", pthread_setconcurrency, INT_MIN);
  show_value("pthread_getconcurrency", "0", pthread_getconcurrency());
  CASE("3", pthread_setconcurrency, 3);
  show_value("pthread_getconcurrency", "3", pthread_getconcurrency());
  CASE("0", pthread_setconcurrency, 0);
  show_value("pthread_equal", "self", pthread_equal(pthread_self(), pthread_self()) != 0);
  show_value("pthread_equal", "nobody", pthread_equal(pthread_self(), 0) != 0);
  clockid_t clock;
  struct timespec t;
  CASE("self", pthread_getcpuclockid, pthread_self(), &clock);
  FAILS("its clock", clock_gettime, clock, &t);
  FAILS("its clock", clock_getres, clock, &t);
  FAILS("its clock", clock_settime, clock, &t);
  FAILS("its clock, tv_nsec 1e9", clock_settime, clock, &bad_high);
  FAILS("no such clock", clock_settime, 99, &t);
}

static void cases(void) {
  sem_init(&go, 0, 0);
  sem_init(&gone, 0, 0);
  create();
  join();
  ended_threads();
  signals();
  cancellation();
  names();
  keys();
  other();
}
