// SPDX-License-Identifier: MIT
// How libc's helper threads for timers end: by pthread_exit, and cancelled by themselves and by others.
// libs: -lrt
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "foreign.h"

static atomic_int cleaned;
static void cleanup(void* p) { cleaned++; }

// A timer's callback, which ends its thread and leaves something to clean up.
static void exits(union sigval v) {
  pthread_cleanup_push(cleanup, NULL);
  pthread_setspecific(key, (void*)1000);
  sem_post(&done);
  pthread_exit(NULL);
  pthread_cleanup_pop(0);
}
static void cancels_itself(union sigval v) {
  pthread_cleanup_push(cleanup, NULL);
  pthread_setspecific(key, (void*)1000);
  sem_post(&done);
  pthread_cancel(pthread_self());
  if (v.sival_int == 0) pthread_testcancel();
  else if (v.sival_int == 1) usleep(1);
  else close(open("/dev/null", O_RDONLY));
  printf("not here\n");
  pthread_cleanup_pop(0);
}
static pthread_t canceller_target;
static void cancels(union sigval v) {
  pthread_cancel(canceller_target);
  pthread_kill(canceller_target, 0);
  sem_post(&done);
}
static void* stop(void* p) {
  for (;;) pause();
  return p;
}
static void ends(void) {
  timer_t t;
  struct sigevent e = {};
  e.sigev_notify = SIGEV_THREAD;
  e.sigev_notify_function = exits;
  int before = destroyed;
  timer_create(CLOCK_MONOTONIC, &e, &t);
  struct itimerspec soon = {{0, 0}, {0, 1000000}};
  timer_settime(t, 0, &soon, NULL);
  wait_all(1);
  for (int i = 0; i < 1000 && destroyed == before; i++) usleep(1000);
  printf("pthread_exit in a helper: cleaned %d, destroyed %d\n", cleaned, destroyed - before);
  timer_delete(t);
  for (int how = 0; how < 3; how++) {
    before = destroyed;
    e.sigev_notify_function = cancels_itself;
    e.sigev_value.sival_int = how;
    timer_create(CLOCK_MONOTONIC, &e, &t);
    timer_settime(t, 0, &soon, NULL);
    wait_all(1);
    for (int i = 0; i < 1000 && destroyed == before; i++) usleep(1000);
    printf("a helper cancels itself: cleaned %d, destroyed %d\n", cleaned, destroyed - before);
    timer_delete(t);
  }
  pthread_create(&canceller_target, NULL, stop, NULL);
  e.sigev_notify_function = cancels;
  timer_create(CLOCK_MONOTONIC, &e, &t);
  timer_settime(t, 0, &soon, NULL);
  wait_all(1);
  void* r;
  pthread_join(canceller_target, &r);
  printf("cancelled by a helper: %d\n", r == PTHREAD_CANCELED);
  timer_delete(t);
}

// Other threads cancel the helpers, wherever these wait.
static pthread_t victim;
static sem_t never, there, fed;
static atomic_int eaten;
static atomic_int told_to_go;
static void waits_to_be_cancelled(union sigval v) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
  int p[2];
  char b;
  pipe(p);
  victim = pthread_self();
  pthread_setspecific(key, (void*)1000);
  pthread_cleanup_push(cleanup, NULL);
  if (v.sival_int == 5) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  if (v.sival_int == 6) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  sem_post(&there);
  switch (v.sival_int) {
    case 0: pause(); break;
    case 1: read(p[0], &b, 1); break;
    case 2: sem_wait(&never); break;
    case 3:
      pthread_mutex_lock(&lock);
      pthread_cond_wait(&cond, &lock);
      break;
    case 4: sleep(1000); break;
    case 5:
      while (!told_to_go) usleep(1000);
      pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
      pthread_testcancel();
      break;
    case 6:
      for (;;) atomic_load(&told_to_go);
    case 7:
      pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
      for (int n;;)
        if (sem_getvalue(&fed, &n) == 0 && n == 0) sem_post(&fed);  // this wakes a thread, and is no cancellation point
  }
  printf("not here\n");
  pthread_cleanup_pop(0);
}
static void* eats(void* p) {
  while (!eaten) sem_wait(&fed);
  return p;
}
static void cancelled_by_others(void) {
  sem_init(&never, 0, 0);
  sem_init(&there, 0, 0);
  sem_init(&fed, 0, 0);
  pthread_t eater;
  pthread_create(&eater, NULL, eats, NULL);
  for (int round = 0; round < 47; round++) {
    int how = round < 7 ? round : 7;
    timer_t t;
    struct sigevent e = {};
    e.sigev_notify = SIGEV_THREAD;
    e.sigev_notify_function = waits_to_be_cancelled;
    e.sigev_value.sival_int = how;
    struct itimerspec soon = {{0, 0}, {0, 1000000}};
    int before = destroyed, clean = cleaned;
    told_to_go = 0;
    timer_create(CLOCK_MONOTONIC, &e, &t);
    timer_settime(t, 0, &soon, NULL);
    while (sem_wait(&there) != 0) {
    }
    usleep(how < 7 ? 2000 : 100 + round * 7);
    int r = pthread_cancel(victim);
    told_to_go = 1;
    for (int i = 0; i < 10000 && destroyed == before; i++) usleep(1000);
    printf("a helper is cancelled, %d: %d, cleaned %d, destroyed %d\n", how, r, cleaned - clean, destroyed - before);
    timer_delete(t);
  }
  eaten = 1;
  sem_post(&fed);
  pthread_join(eater, NULL);
}

int main() {
  alarm(120);
  sem_init(&done, 0, 0);
  pthread_key_create(&key, destructor);
  ends();
  cancelled_by_others();
  return 0;
}
