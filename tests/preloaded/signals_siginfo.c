// SPDX-License-Identifier: MIT
// What a signal's handler is told, in which order pending signals come, and signals for threads that run or have ended.
#include "signals_parked.h"

static volatile int released;
static void* pends(void* p) {
  sem_post(&about);
  while (sem_wait(&go)) {
  }
  long n = is_pending(SIGUSR2) + 10 * is_pending(SIGRTMIN + 4);
  sigset_t s = set_of(SIGUSR2, SIGRTMIN + 4);
  order[0] = 0;
  pthread_sigmask(SIG_UNBLOCK, &s, NULL);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
  return (void*)n;
}
static void* spins(void* p) {
  mask(SIG_UNBLOCK, SIGUSR1);
  sem_post(&about);
  while (!released) {
  }
  return p;
}

// A standard signal is pending once for a thread, real-time signals are queued. The lowest comes first.
static void pending_for_a_thread(void) {
  pthread_t t;
  void* r;
  union sigval v;
  handle(SIGUSR2, 0);
  handle(SIGRTMIN + 4, 0);
  pthread_create(&t, NULL, pends, NULL);
  settle();
  for (int i = 0; i < 3; i++) {
    pthread_kill(t, SIGUSR2);
    v.sival_int = 100 + i;
    pthread_sigqueue(t, SIGRTMIN + 4, v);
  }
  runs = 0;
  sem_post(&go);
  pthread_join(t, &r);
  printf("pending %ld, runs %d: %s\n", (long)r, runs, order);
  printf("main: pending %d %d\n", is_pending(SIGUSR2), is_pending(SIGRTMIN + 4));
}
static void what_a_handler_is_told(void) {
  union sigval v;
  runs = 0;
  mask(SIG_UNBLOCK, SIGRTMIN + 4);
  v.sival_int = 7;
  sigqueue(getpid(), SIGRTMIN + 4, v);
  printf("sigqueue: code %d value %d pid %d\n", last_code == SI_QUEUE, last_value, last_pid == getpid());
  pthread_sigqueue(pthread_self(), SIGRTMIN + 4, v);
  printf("pthread_sigqueue: code %d value %d pid %d\n", last_code == SI_QUEUE, last_value, last_pid == getpid());
  pthread_kill(pthread_self(), SIGRTMIN + 4);
  printf("pthread_kill: code %d pid %d\n", last_code == SI_TKILL, last_pid == getpid());
  kill(getpid(), SIGRTMIN + 4);
  printf("kill: code %d pid %d\n", last_code == SI_USER, last_pid == getpid());
  raise(SIGRTMIN + 4);
  printf("raise: code %d runs %d\n", last_code == SI_TKILL, runs);
  printf("no signal: %s, bad: %s %s\n", name(pthread_kill(pthread_self(), 0)), name(pthread_kill(pthread_self(), 65)),
         name(kill(getpid(), 65) ? errno : 0));
}
static void to_threads_that_run_or_have_ended(void) {
  pthread_t t;
  handle(SIGUSR1, 0);
  released = 0;
  runs = 0;
  pthread_create(&t, NULL, spins, NULL);
  settle();
  for (int i = 0; i < 20; i++) {
    pthread_kill(t, SIGUSR1);
    await_runs(i + 1);
  }
  released = 1;
  pthread_join(t, NULL);
  printf("spinning: %d\n", runs);
  pthread_create(&t, NULL, nothing, NULL);
  usleep(20000);
  printf("ended: %s\n", name(pthread_kill(t, SIGUSR1)));
  pthread_join(t, NULL);
}

int main() {
  begin();
  pending_for_a_thread();
  what_a_handler_is_told();
  to_threads_that_run_or_have_ended();
  return 0;
}
