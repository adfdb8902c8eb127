// SPDX-License-Identifier: MIT
// Signals sent to the process while threads that have a CPU set of their own wait. A waiting thread lets in what it does not block.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { kRounds = 1000 };
static sem_t go, ready, handled;
static pthread_t waiter;
static atomic_int by_waiter, other_way;

static sigset_t set_of(int sig) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, sig);
  return set;
}
static void wait_for(sem_t* s) {
  while (sem_wait(s)) {
  }
}
// A set of CPUs of its own binds a thread. It gets the last CPU.
static void bind_me(void) {
  cpu_set_t all, own;
  sched_getaffinity(0, sizeof all, &all);
  CPU_ZERO(&own);
  for (int i = CPU_SETSIZE - 1; i >= 0 && !CPU_COUNT(&own); i--)
    if (CPU_ISSET(i, &all)) CPU_SET(i, &own);
  int e = pthread_setaffinity_np(pthread_self(), sizeof own, &own);
  if (e) printf("pthread_setaffinity_np: %d\n", e);
}
static void count(int sig) {
  (void)sig;
  pthread_equal(pthread_self(), waiter) ? by_waiter++ : other_way++;
  sem_post(&handled);
}
static void* lets_in(void* p) {
  int sig = *(int*)p;
  sigset_t set = set_of(sig);
  bind_me();
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  sem_post(&ready);
  wait_for(&go);
  return p;
}

// Only the waiting thread lets it in, so that handles it.
static void in_a_wait(void) {
  int sig = SIGUSR1;
  signal(sig, count);
  pthread_create(&waiter, NULL, lets_in, &sig);
  wait_for(&ready);
  for (int i = 0; i < kRounds; i++) {
    kill(getpid(), sig);
    wait_for(&handled);
  }
  sem_post(&go);
  pthread_join(waiter, NULL);
  printf("in a wait: %d by the waiting thread, %d by others\n", by_waiter, other_way);
}

static void* takes(void* p) {
  sigset_t set = set_of(SIGUSR2);
  long taken = 0;
  siginfo_t info;
  bind_me();
  for (int i = 0; i < kRounds; i++) {
    taken += sigwaitinfo(&set, &info) == SIGUSR2 && info.si_pid == getpid();
    sem_post(&handled);
  }
  (void)p;
  return (void*)taken;
}
static void in_sigwait(void) {
  pthread_t t;
  void* taken;
  pthread_create(&t, NULL, takes, NULL);
  for (int i = 0; i < kRounds; i++) {
    kill(getpid(), SIGUSR2);
    wait_for(&handled);
  }
  pthread_join(t, &taken);
  printf("in sigwaitinfo: %ld\n", (long)taken);
}

// It stays pending if only a thread has let it in that has ended. Otherwise it would end the process.
static void after_the_end(void) {
  int sig = SIGTERM, stayed = 0, taken = 0;
  sigset_t set = set_of(sig), pending;
  struct timespec zero = {0, 0};
  for (int i = 0; i < kRounds; i++) {
    pthread_t t;
    pthread_create(&t, NULL, lets_in, &sig);
    wait_for(&ready);
    if (i % 2) sched_yield();
    sem_post(&go);
    pthread_join(t, NULL);
    kill(getpid(), sig);
    sigpending(&pending);
    stayed += sigismember(&pending, sig);
    taken += sigtimedwait(&set, NULL, &zero) == sig;
  }
  printf("after the end: stayed %d, taken %d\n", stayed, taken);
}

int main(void) {
  sigset_t all;
  setvbuf(stdout, NULL, _IOLBF, 0);
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, NULL);
  sem_init(&go, 0, 0);
  sem_init(&ready, 0, 0);
  sem_init(&handled, 0, 0);
  in_a_wait();
  in_sigwait();
  after_the_end();
  return 0;
}
