// SPDX-License-Identifier: MIT
// A signal to the process goes to main while main is in sigwait, though other threads have it unblocked. Before and after that, it goes to
// the others.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static atomic_int handled, over, rounds_left;
static pthread_t main_thread;
static void handle(int sig) {
  (void)sig;
  atomic_fetch_add(&handled, pthread_equal(pthread_self(), main_thread) ? 1000000 : 1);
}
static void* parked(void* p) {
  static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
  pthread_mutex_lock(&m);
  for (;;) pthread_cond_wait(&never, &m);
  return p;
}
static void* computes(void* p) {
  while (!atomic_load(&over)) {
  }
  return p;
}
static void* sends(void* p) {
  usleep(300000);  // main waits by now, which nothing can tell
  kill(getpid(), *(int*)p);
  return NULL;
}
static void* keeps_sending(void* p) {
  for (int i = 0; i < 2000; i++) {
    kill(getpid(), SIGUSR1);
    if (i % 50 == 0) usleep(100);
  }
  atomic_store(&rounds_left, 0);
  return p;
}

int main() {
  pthread_t t, computing;
  sigset_t set;
  main_thread = pthread_self();
  pthread_create(&t, NULL, parked, NULL);
  pthread_create(&computing, NULL, computes, NULL);
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  signal(SIGUSR1, handle);  // otherwise the signals to others would end the process
  for (int i = 0; i < 12; i++) {
    int sig = i & 1 ? SIGUSR1 : SIGUSR2;
    struct timespec limit = {60, 0};
    pid_t pid = 0;
    if (i & 2) pthread_create(&t, NULL, sends, &sig);
    else if ((pid = fork()) == 0) usleep(300000), kill(getppid(), sig), _exit(0);
    int got = sigtimedwait(&set, NULL, &limit);
    if (got != sig || handled) printf("round %d: %d instead of %d, %d handled\n", i, got, sig, handled);
    if (pid) waitpid(pid, NULL, 0);
    else pthread_join(t, NULL);
  }
  // While main does not wait, signals go to the other threads.
  kill(getpid(), SIGUSR1);
  while (!handled) usleep(1000);
  printf("handled by others: %d\n", handled);
  // main waits now and then. Some thread takes each signal, at the latest when main has gone on.
  atomic_store(&rounds_left, 1);
  pthread_create(&t, NULL, keeps_sending, NULL);
  int waited = 0;
  while (atomic_load(&rounds_left)) {
    struct timespec limit = {0, waited % 3 * 20000};
    waited += sigtimedwait(&set, NULL, &limit) == SIGUSR1;
  }
  pthread_join(t, NULL);
  sigset_t left;
  struct timespec none = {0, 0};
  while (sigtimedwait(&set, NULL, &none) > 0) {
  }
  handled = 0;
  kill(getpid(), SIGUSR1);
  while (!handled) usleep(1000);
  sigpending(&left);
  printf("left: %d, main handled %d\n", sigismember(&left, SIGUSR1), handled / 1000000);
  over = 1;
  pthread_join(computing, NULL);
  return 0;
}
