// SPDX-License-Identifier: MIT
// Cancellation of a thread that the library has not made and does not know yet: disabled, or asked for, before that thread waits.
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static atomic_int at;
static int disabled;
static atomic_long who;
static sem_t sem;

static void cleanup(void* p) {
  (void)p;
  atomic_store(&at, 4);
}

static void notified(union sigval v) {
  (void)v;
  pthread_cleanup_push(cleanup, NULL);
  int old;
  if (disabled) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
#if defined(__x86_64__)
  atomic_store(&who, (long)__builtin_thread_pointer());  // found without any call by which the library could learn of the thread
#else
  atomic_store(&who, (long)pthread_self());
#endif
  atomic_store(&at, 1);
  while (!disabled && atomic_load(&at) != 2) {
  }
  while (sem_wait(&sem)) {
  }
  atomic_store(&at, 3);
  pthread_cleanup_pop(0);
}

static void* nothing(void* p) { return p; }

int main(void) {
  pthread_t t;
  pthread_create(&t, NULL, nothing, NULL);
  pthread_join(t, NULL);
  for (disabled = 0; disabled < 2; disabled++) {
    atomic_store(&at, 0);
    sem_init(&sem, 0, 0);
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = notified};
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    struct itimerspec soon = {.it_value = {0, 1000000}};
    timer_settime(timer, 0, &soon, NULL);
    while (atomic_load(&at) != 1) usleep(1000);
    if (disabled) usleep(20000);  // it waits
    pthread_cancel((pthread_t)atomic_load(&who));
    if (!disabled) atomic_store(&at, 2);
    if (disabled) usleep(20000), sem_post(&sem);
    while (atomic_load(&at) < 3) usleep(1000);
    printf("%s: %s\n", disabled ? "disabled" : "enabled", atomic_load(&at) == 4 ? "cancelled" : "ran to its end");
    timer_delete(timer);
  }
  return 0;
}
