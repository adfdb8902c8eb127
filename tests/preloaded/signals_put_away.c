// SPDX-License-Identifier: MIT
// Once a signal's handler has run, nothing of that signal comes later. The program removes the handler at once, and the default action
// would end the process. The signals go to threads that compute, sleep, read or wait. There are also timers for a thread, and a second
// signal that comes while the handler runs and ends pause().
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

static atomic_int stop, handled, twice_sent, pausing;
static sem_t ran;
static int wires[2];
static pthread_t waits_for_two;

static void on_signal(int sig) {
  handled++;
  sem_post(&ran);
}
static void handler(void (*f)(int)) {
  struct sigaction a;
  memset(&a, 0, sizeof a);
  a.sa_handler = f;
  a.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &a, NULL);
}

static void* computes(void* p) {
  while (!stop) sched_yield();
  return p;
}
static void* sleeps(void* p) {
  while (!stop) usleep(100);
  return p;
}
static void* reads(void* p) {
  char b;
  while (read(wires[0], &b, 1) < 0) {
  }
  return p;
}
static void* polls(void* p) {
  while (!stop) getppid(), nanosleep(&(struct timespec){0, 50000}, NULL);
  return p;
}

static void sent(void) {
  void* (*const kinds[])(void*) = {computes, sleeps, reads, polls};
  pthread_t t[4];
  assert(pipe(wires) == 0);
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, kinds[i], NULL);
  for (int i = 0; i < 2000; i++) {
    handler(on_signal);
    for (int j = 0; j < 4; j++) assert(pthread_kill(t[j], SIGUSR1) == 0);
    for (int j = 0; j < 4; j++) sem_wait(&ran);
    handler(SIG_DFL);
  }
  stop = 1;
  assert(write(wires[1], "x", 1) == 1);
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  printf("handled %d\n", handled);
}

static void* timed(void* p) {
  for (int i = 0; i < 200; i++) {
    struct sigevent e;
    memset(&e, 0, sizeof e);
    e.sigev_notify = SIGEV_THREAD_ID;
    e.sigev_signo = SIGUSR1;
    e.sigev_notify_thread_id = gettid();
    timer_t t;
    handler(on_signal);
    assert(timer_create(CLOCK_MONOTONIC, &e, &t) == 0);
    struct itimerspec often = {{0, 50000}, {0, 50000}};
    timer_settime(t, 0, &often, NULL);
    if (i % 2) pause();
    else usleep(300);
    timer_delete(t);
    handler(SIG_DFL);
  }
  return p;
}

static void on_first(int sig) {
  int n = ++handled;
  while (n == 1 && !twice_sent) {
  }
}
static void* pauses(void* p) {
  pausing = 1;
  pause();
  long seen = handled;
  pausing = 0;
  return (void*)seen;
}

int main() {
  sem_init(&ran, 0, 0);
  sent();

  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, timed, NULL), pthread_join(t[i], NULL);
  printf("timers put away\n");

  handler(on_first);
  long good = 0;
  for (int i = 0; i < 50; i++) {
    handled = twice_sent = 0;
    pthread_create(&waits_for_two, NULL, pauses, NULL);
    while (!pausing) usleep(100);
    usleep(1000);
    pthread_kill(waits_for_two, SIGUSR1);
    while (!handled) usleep(100);
    pthread_kill(waits_for_two, SIGUSR1);
    twice_sent = 1;
    // In case the first signal came before pause() after all.
    for (int j = 0; pausing; j++) {
      usleep(1000);
      if (j >= 1000) pthread_kill(waits_for_two, SIGUSR1);
    }
    void* seen;
    pthread_join(waits_for_two, &seen);
    good += (long)seen == 2;
  }
  printf("both before pause returned: %s\n", good > 40 ? "mostly" : "hardly ever");
  return 0;
}
