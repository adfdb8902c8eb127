// SPDX-License-Identifier: MIT
// A thread with a kernel thread of its own waits with deadlines: none ends too early, a wake-up, a signal and a cancellation end it before,
// and the next wait is not disturbed by the deadline of the one before.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static sem_t s, waits;
static int go;
static struct timespec soon;

static long long now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static struct timespec in(clockid_t clock, long long ns) {
  long long at = now(clock) + ns;
  return (struct timespec){at / 1000000000, at % 1000000000};
}
static void handler(int sig) {}
static void bind_to_cpu(void) {
  cpu_set_t set;
  int cpu = 0;
  if (sched_getaffinity(0, sizeof set, &set)) abort();
  while (!CPU_ISSET(cpu, &set)) cpu++;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof set, &set)) abort();
}

static void* waiter(void* p) {
  bind_to_cpu();
  int early = 0, results[3] = {0};
  for (int i = 0; i < 200; i++) {
    long long us = i % 4 == 3 ? 2000 : i % 4 * 70 + 1, start = now(CLOCK_MONOTONIC);
    usleep((useconds_t)us);
    early += now(CLOCK_MONOTONIC) - start < us * 1000;
  }
  for (int i = 0; i < 50; i++) {
    struct timespec at = in(CLOCK_REALTIME, 500000);
    pthread_mutex_lock(&m);
    results[0] += pthread_cond_timedwait(&c, &m, &at) == ETIMEDOUT;
    pthread_mutex_unlock(&m);
    early += now(CLOCK_REALTIME) < at.tv_sec * 1000000000LL + at.tv_nsec;
    at = in(CLOCK_REALTIME, 300000);
    results[1] += sem_timedwait(&s, &at) == -1 && errno == ETIMEDOUT;
    at = in(CLOCK_MONOTONIC, 300000);
    results[2] += clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == 0;
    early += now(CLOCK_MONOTONIC) < at.tv_sec * 1000000000LL + at.tv_nsec;
  }
  printf("early %d, timed out %d %d, slept %d\n", early, results[0], results[1], results[2]);
  // Woken long before the deadline, again and again, and then a wait without one.
  struct timespec far = in(CLOCK_REALTIME, 100000000000LL);
  int woken = 0;
  for (int i = 0; i < 500; i++) {
    sem_post(&waits);
    if (i % 2) {
      woken += sem_timedwait(&s, &far) == 0;
    } else {
      pthread_mutex_lock(&m);
      while (!go && pthread_cond_timedwait(&c, &m, &far) == 0) {
      }
      woken += go;
      go = 0;
      pthread_mutex_unlock(&m);
    }
  }
  soon = in(CLOCK_REALTIME, 200000000);
  sem_post(&waits);
  if (sem_timedwait(&s, &soon))
    while (sem_wait(&s)) {
    }
  sem_post(&waits);
  woken += sem_wait(&s) == 0;
  printf("woken %d\n", woken);
  struct timespec left = {100, 0};
  sem_post(&waits);
  int r = nanosleep(&left, &left);
  printf("nanosleep %d %s, left %s\n", r, r ? strerrorname_np(errno) : "", left.tv_sec > 90 ? "much" : "little");
  fflush(stdout);
  sem_post(&waits);
  left.tv_sec = 100;
  for (;;) nanosleep(&left, NULL);
  return p;
}

int main(void) {
  signal(SIGUSR1, handler);
  sem_init(&s, 0, 0);
  sem_init(&waits, 0, 0);
  pthread_t t;
  pthread_create(&t, NULL, waiter, NULL);
  for (int i = 0; i < 500; i++) {
    while (sem_wait(&waits)) {
    }
    if (i % 2) {
      sem_post(&s);
    } else {
      pthread_mutex_lock(&m);
      go = 1;
      pthread_cond_signal(&c);
      pthread_mutex_unlock(&m);
    }
  }
  while (sem_wait(&waits)) {
  }
  sem_post(&s);
  while (sem_wait(&waits)) {
  }
  clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &soon, NULL);  // the deadline of the wait before must not end this one
  sem_post(&s);
  while (sem_wait(&waits)) {
  }
  do pthread_kill(t, SIGUSR1);  // the first may come before the sleep begins
  while (sched_yield() || sem_trywait(&waits));
  void* result;
  pthread_cancel(t);
  pthread_join(t, &result);
  printf("cancelled %d\n", result == PTHREAD_CANCELED);
  return 0;
}
