// SPDX-License-Identifier: MIT
// Clocks by every number, those of single threads among them; timers for them; RUSAGE_THREAD.
#include "errors.h"

#include <sys/times.h>

static sem_t go;
static int other_tid;
static void* waits(void* p) {
  other_tid = gettid();
  sem_post(p);
  while (sem_wait(&go) != 0) {
  }
  return p;
}

static void one_clock(clockid_t clock, const char* name) {
  struct timespec t = {-1, -1};
  if (FAILS(name, clock_gettime, clock, &t) == 0) printf("a time %d\n", t.tv_sec >= 0 && t.tv_nsec >= 0 && t.tv_nsec < 1000000000);
  if (FAILS(name, clock_getres, clock, &t) == 0) printf("resolution %ld %ld\n", t.tv_sec, t.tv_nsec);
  FAILS(format("%s, no result", name), clock_getres, clock, NULL);
  static const struct timespec zero = {0, 0};
  CASE(format("%s, at 0", name), clock_nanosleep, clock, TIMER_ABSTIME, &zero, NULL);
  CASE(format("%s, tv_nsec 1e9", name), clock_nanosleep, clock, TIMER_ABSTIME, &bad_high, NULL);
  CASE(format("%s, tv_nsec -1", name), clock_nanosleep, clock, 0, &bad_low, NULL);
  CASE(format("%s, before 1970", name), clock_nanosleep, clock, 0, &negative, NULL);
  CASE(format("%s, for 0", name), clock_nanosleep, clock, 0, &zero, NULL);
}

static void one_timer(clockid_t clock, const char* name, int notify, int signal, int tid, const char* what) {
  struct sigevent e;
  memset(&e, 0, sizeof e);
  e.sigev_notify = notify;
  e.sigev_signo = signal;
  e._sigev_un._tid = tid;
  timer_t timer;
  const char* state = format("%s, %s", name, what);
  if (FAILS(state, timer_create, clock, &e, &timer) != 0) return;
  struct itimerspec i = {{0, 0}, {0, 1000000000}}, before;
  FAILS(format("%s, tv_nsec 1e9", state), timer_settime, timer, 0, &i, NULL);
  i.it_value.tv_nsec = -1;
  FAILS(format("%s, tv_nsec -1", state), timer_settime, timer, 0, &i, NULL);
  i.it_value = (struct timespec){3600, 0};
  FAILS(state, timer_settime, timer, 0, &i, &before);
  FAILS(format("%s, old at 8", state), timer_settime, timer, 0, &i, (struct itimerspec*)8);
  FAILS(format("%s, new at 8", state), timer_settime, timer, 0, (struct itimerspec*)8, NULL);
  FAILS(state, timer_gettime, timer, &i);
  FAILS(format("%s, at 8", state), timer_gettime, timer, (struct itimerspec*)8);
  printf("armed %d\n", i.it_value.tv_sec > 3000);
  show_value("timer_getoverrun", state, timer_getoverrun(timer));
  FAILS(state, timer_delete, timer);
  FAILS(format("%s, deleted", state), timer_delete, timer);
  FAILS(format("%s, deleted", state), timer_gettime, timer, &i);
  FAILS(format("%s, deleted", state), timer_settime, timer, 0, &i, NULL);
  FAILS(format("%s, deleted", state), timer_getoverrun, timer);
}

static void timers(clockid_t clock, const char* name) {
  one_timer(clock, name, SIGEV_SIGNAL, SIGUSR1, 0, "signal");
  one_timer(clock, name, SIGEV_NONE, 0, 0, "none");
  one_timer(clock, name, SIGEV_SIGNAL, 0, 0, "signal 0");
  one_timer(clock, name, SIGEV_SIGNAL, 65, 0, "signal 65");
  one_timer(clock, name, SIGEV_SIGNAL, -1, 0, "signal -1");
  one_timer(clock, name, 99, SIGUSR1, 0, "notify 99");
  one_timer(clock, name, SIGEV_THREAD_ID, SIGUSR1, gettid(), "to self");
  one_timer(clock, name, SIGEV_THREAD_ID, SIGUSR1, other_tid, "to another");
  one_timer(clock, name, SIGEV_THREAD_ID, SIGUSR1, 0, "to tid 0");
  one_timer(clock, name, SIGEV_THREAD_ID, SIGUSR1, -1, "to tid -1");
  one_timer(clock, name, SIGEV_THREAD_ID, SIGUSR1, INT_MAX, "to nobody");
  one_timer(clock, name, SIGEV_THREAD_ID, SIGUSR1, 1, "to another process");
  one_timer(clock, name, SIGEV_THREAD_ID, 65, gettid(), "to self, signal 65");
}

static void* gives_clock(void* p) {
  pthread_getcpuclockid(pthread_self(), p);
  return p;
}

static void cases(void) {
  static const struct {
    clockid_t clock;
    const char* name;
  } all[] = {{CLOCK_REALTIME, "realtime"},
             {CLOCK_MONOTONIC, "monotonic"},
             {CLOCK_PROCESS_CPUTIME_ID, "process"},
             {CLOCK_THREAD_CPUTIME_ID, "thread"},
             {CLOCK_MONOTONIC_RAW, "raw"},
             {CLOCK_REALTIME_COARSE, "coarse"},
             {CLOCK_BOOTTIME, "boottime"},
             {CLOCK_TAI, "TAI"},
             {10, "10"},
             {12, "12"},
             {99, "99"},
             {INT_MAX, "INT_MAX"},
             {-1, "-1"},
             {-2, "-2"},
             {-3, "-3"},
             {-6, "-6"},
             {INT_MIN, "INT_MIN"}};
  sem_t ready;
  sem_init(&ready, 0, 0);
  sem_init(&go, 0, 0);
  pthread_t t;
  assert(pthread_create(&t, NULL, waits, &ready) == 0);
  while (sem_wait(&ready) != 0) {
  }
  clockid_t own, others, ended;
  CASE("self", pthread_getcpuclockid, pthread_self(), &own);
  CASE("another", pthread_getcpuclockid, t, &others);
  printf("different %d, like the kernel's %d\n", own != others, (own & 7) == 6 && (others & 7) == 6 && own < 0);
  elsewhere(gives_clock, &ended);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    one_clock(all[i].clock, all[i].name);
    if (all[i].clock != CLOCK_MONOTONIC_RAW) timers(all[i].clock, all[i].name);
  }
  one_clock(own, "own");
  one_clock(others, "another's");
  one_clock(ended, "ended one's");
  timers(own, "own");
  timers(others, "another's");
  timers(ended, "ended one's");
  struct rusage u;
  static const int whos[] = {RUSAGE_SELF, RUSAGE_CHILDREN, RUSAGE_THREAD, 2, -2, 99};
  for (int i = 0; i < 6; i++) FAILS(format("%d", whos[i]), getrusage, whos[i], &u);
  struct tms tms;
  show_value("times", "", times(&tms) == -1);
  sem_post(&go);
  pthread_join(t, NULL);
}
