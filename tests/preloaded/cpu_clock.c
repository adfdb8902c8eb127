// SPDX-License-Identifier: MIT
// A thread's CPU clock is its own. It never runs backwards wherever the thread runs, and stands still while the thread waits. All of them
// together show no more than the process has used.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int64_t ns(struct timespec t) { return t.tv_sec * 1000000000ll + t.tv_nsec; }
static int64_t read_clock(clockid_t c) {
  struct timespec t;
  assert(clock_gettime(c, &t) == 0);
  return ns(t);
}
static int64_t mine(void) { return read_clock(CLOCK_THREAD_CPUTIME_ID); }
static int64_t by_usage(void) {
  struct rusage u;
  assert(getrusage(RUSAGE_THREAD, &u) == 0);
  return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000ll + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000ll;
}
static int64_t by_number(void) {
  struct timespec t;
  assert(syscall(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &t) == 0);
  return ns(t);
}
static clockid_t clock_of(pthread_t t) {
  clockid_t c;
  assert(pthread_getcpuclockid(t, &c) == 0);
  return c;
}

// Uses so much CPU time by the thread's own clock. If that clock stood still, this would never end.
static void use(int64_t amount) {
  int64_t start = mine(), last = start;
  while (last - start < amount) {
    for (volatile int i = 0; i < 2000; i++) {
    }
    int64_t now = mine();
    assert(now >= last);
    last = now;
    if (now / 1000000 % 3 == 0) sched_yield();
  }
}

enum { kThreads = 12 };
static int64_t used[kThreads];
static void* computes(void* p) {
  int n = (int)(intptr_t)p;
  int64_t a = mine();
  use(10000000);
  int64_t b = mine(), c = by_usage(), d = by_number(), e = read_clock(clock_of(pthread_self())), f = mine();
  assert(b - a >= 10000000);
  // The kernel computes its RUSAGE_THREAD from samples at each tick. Only the library's is the clock in whole microseconds.
  assert(c > 0 && d >= b && e >= d && f >= e);
  used[n] = f;
  return p;
}

// While a thread waits, its clock shows nothing of what others do.
static sem_t go, done;
static int64_t while_waiting;
static void* waits(void* p) {
  int64_t before = mine();
  sem_post(&done);
  while (sem_wait(&go) != 0) {
  }
  while_waiting = mine() - before;
  return p;
}

static volatile int stop, started;
static void* runs_on(void* p) {
  started = 1;
  while (!stop)
    for (volatile int i = 0; i < 2000; i++) {
    }
  return p;
}

static volatile int ticks;
static void on_timer(int sig) { ticks++; }

int main() {
  pthread_t t[kThreads];
  int64_t first = mine();
  for (int i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, computes, (void*)(intptr_t)i) == 0);
  // Reads other threads' clocks while these run, wait and move.
  int64_t last[kThreads] = {0};
  for (int round = 0; round < 200; round++) {
    for (int i = 0; i < kThreads; i++) {
      clockid_t c;
      struct timespec now;
      if (pthread_getcpuclockid(t[i], &c) != 0 || clock_gettime(c, &now) != 0) continue;
      assert(ns(now) >= last[i]);
      last[i] = ns(now);
    }
    sched_yield();
  }
  for (int i = 0; i < kThreads; i++) assert(pthread_join(t[i], NULL) == 0);
  int64_t sum = mine();
  assert(sum >= first);
  for (int i = 0; i < kThreads; i++) sum += used[i];
  int64_t process = read_clock(CLOCK_PROCESS_CPUTIME_ID);
  printf("sum %s, at least what was used %d\n", sum <= process ? "within the process's" : "too much", sum >= kThreads * 10000000ll);

  sem_init(&go, 0, 0);
  sem_init(&done, 0, 0);
  assert(pthread_create(&t[0], NULL, waits, NULL) == 0);
  while (sem_wait(&done) != 0) {
  }
  while (sem_trywait(&done) == 0) {
  }
  nanosleep(&(struct timespec){0, 20000000}, NULL);
  clockid_t c = clock_of(t[0]);
  int64_t before = read_clock(c);
  use(100000000);
  int64_t after = read_clock(c);
  sem_post(&go);
  assert(pthread_join(t[0], NULL) == 0);
  printf("while it waits: %d, %d\n", after == before, while_waiting < 50000000);

  // A thread that never waits is seen to run.
  assert(pthread_create(&t[0], NULL, runs_on, NULL) == 0);
  while (!started) sched_yield();
  c = clock_of(t[0]);
  before = read_clock(c);
  while (read_clock(c) - before < 20000000) sched_yield();
  // Sleeps on that thread's clock.
  before = read_clock(c);
  struct timespec amount = {0, 20000000}, left;
  assert(clock_nanosleep(c, 0, &amount, &left) == 0);
  printf("slept on another's clock: %d\n", read_clock(c) - before >= 20000000);
  int64_t until = read_clock(c) + 20000000;
  struct timespec at = {until / 1000000000, until % 1000000000};
  assert(clock_nanosleep(c, TIMER_ABSTIME, &at, NULL) == 0);
  printf("until: %d\n", read_clock(c) >= until);
  // Sets a timer on that clock.
  signal(SIGRTMIN, on_timer);
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
  timer_t timer;
  assert(timer_create(c, &event, &timer) == 0);
  struct itimerspec often = {{0, 5000000}, {0, 5000000}};
  assert(timer_settime(timer, 0, &often, NULL) == 0);
  while (ticks < 3) sched_yield();
  assert(timer_delete(timer) == 0);
  stop = 1;
  assert(pthread_join(t[0], NULL) == 0);
  // Sets a timer on the caller's own clock.
  ticks = 0;
  assert(timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) == 0);
  assert(timer_settime(timer, 0, &often, NULL) == 0);
  while (ticks < 3) {
  }
  assert(timer_delete(timer) == 0);
  int64_t end = mine();
  printf("main's never fell: %d\n", end >= first);
  return 0;
}
