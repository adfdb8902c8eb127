// SPDX-License-Identifier: MIT
// Signals of timers for the process and for one thread, and of alarms. Timers that make threads.
#include "signals_parked.h"

static void on_timer_thread(union sigval v) {
  if (__atomic_add_fetch(&runs, 1, __ATOMIC_SEQ_CST) == 1) sem_post(v.sival_ptr);
}

static timer_t start(struct sigevent* e) {
  timer_t timer;
  struct itimerspec in = {{0, 0}, {0, 2000000}};
  runs = 0;
  timer_create(CLOCK_MONOTONIC, e, &timer);
  timer_settime(timer, 0, &in, NULL);
  return timer;
}
static void for_the_process(void) {
  struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 4, .sigev_value.sival_int = 77};
  timer_t timer = start(&e);
  while (runs < 1) pause();
  printf("timer: code %d value %d\n", last_code == SI_TIMER, last_value);
  timer_delete(timer);
}
static void makes_a_thread(void) {
  struct sigevent e = {.sigev_notify = SIGEV_THREAD, .sigev_value.sival_ptr = &go};
  e.sigev_notify_function = on_timer_thread;
  timer_t timer = start(&e);
  while (sem_wait(&go)) {
  }
  timer_delete(timer);
  puts("timer's thread");
}
static void for_a_thread(void) {
  struct sigevent e = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR2};
  e._sigev_un._tid = gettid();
  mask(SIG_UNBLOCK, SIGUSR2);
  timer_t timer = start(&e);
  while (runs < 1) pause();
  timer_delete(timer);
  printf("thread's timer: in main %d\n", ran_in_main);
}
static void of_an_alarm(void) {
  handle(SIGALRM, 0);
  runs = 0;
  ualarm(2000, 0);
  while (runs < 1) pause();
  printf("alarm: in main %d\n", ran_in_main);
}

int main() {
  begin();
  handle(SIGUSR2, 0);
  handle(SIGRTMIN + 4, 0);
  mask(SIG_UNBLOCK, SIGRTMIN + 4);
  for_the_process();
  makes_a_thread();
  for_a_thread();
  of_an_alarm();
  return 0;
}
