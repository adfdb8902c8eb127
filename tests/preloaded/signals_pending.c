// SPDX-License-Identifier: MIT
// sigpending() shows signals that were sent and are blocked, and nothing else. In particular, it does not show the same signal to other
// threads.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int stop, handled, wrong;
static void handler(int sig) { (void)sig, handled++; }
static int pending(int sig) {
  sigset_t set;
  assert(sigpending(&set) == 0);
  unsigned long word = 0;
  assert(syscall(SYS_rt_sigpending, &word, 8) == 0);
  return sigismember(&set, sig) && word >> (sig - 1) & 1;
}
static void change(int how, int sig) {
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, sig);
  pthread_sigmask(how, &set, NULL);
}

// Blocks SIGUSR1 always, and no thread sends SIGUSR1 to this one.
static void* looks(void* p) {
  change(SIG_BLOCK, SIGUSR1);
  while (!stop) {
    wrong += pending(SIGUSR1);
    sched_yield();
  }
  return p;
}
// Gets SIGUSR1 in a handler, and takes it while it is blocked.
static atomic_int closed;
static void* gets(void* p) {
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGUSR1);
  while (!stop) {
    sched_yield();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    closed = 1;
    while (closed == 1 && !stop) sched_yield();  // until no thread sends
    struct timespec at_once = {0, 0};
    while (sigtimedwait(&set, NULL, &at_once) == SIGUSR1) {
    }
    if (stop) break;
    wrong += pending(SIGUSR1);
    closed = 0;
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  }
  return p;
}
static void* sends(void* t) {
  while (!stop) {
    for (int i = 0; i < 20 && closed != 1; i++) pthread_kill(*(pthread_t*)t, SIGUSR1);
    if (closed == 1) {
      closed = 2;
      while (closed == 2 && !stop) sched_yield();
    }
  }
  return NULL;
}

// A pending signal shows to the thread that has it, however it was sent.
static void* sees(void* p) {
  struct sigaction act;
  memset(&act, 0, sizeof act);
  act.sa_handler = handler;
  int all[] = {SIGUSR2, SIGRTMIN + 1};
  for (int i = 0; i < 2; i++) {
    int sig = all[i], before = handled;
    sigaction(sig, &act, NULL);
    change(SIG_BLOCK, sig);
    printf("before %d", pending(sig));
    pthread_kill(pthread_self(), sig);
    printf(", by pthread_kill %d", pending(sig));
    change(SIG_UNBLOCK, sig);
    printf(", then %d, handled %d", pending(sig), handled - before);
    change(SIG_BLOCK, sig);
    kill(getpid(), sig);
    printf(", by kill %d", pending(sig));
    pid_t child = fork();
    if (child == 0) _exit(pending(sig) || kill(getppid(), sig));
    int status;
    waitpid(child, &status, 0);
    printf(", child %#x, by a child %d", status, pending(sig));
    printf(", not for others %d", pending(SIGUSR1));
    union sigval v = {.sival_int = 7};
    sigqueue(getpid(), sig, v);
    pthread_sigqueue(pthread_self(), sig, v);
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, sig);
    struct timespec at_once = {0, 0};
    int n = 0;
    while (sigtimedwait(&set, NULL, &at_once) == sig) n++;
    printf(", taken %d, then %d\n", n, pending(sig));
  }
  errno = 0;
  printf("no size %ld", syscall(SYS_rt_sigpending, &all, 16));
  printf(" %s", strerrorname_np(errno));
  printf(", no room %ld", syscall(SYS_rt_sigpending, (void*)8, 8));
  printf(" %s\n", strerrorname_np(errno));
  return p;
}

int main() {
  pthread_t t[5];
  change(SIG_BLOCK, SIGUSR2), change(SIG_BLOCK, SIGRTMIN + 1);
  pthread_create(&t[0], NULL, sees, NULL);
  pthread_join(t[0], NULL);
  struct sigaction act;
  memset(&act, 0, sizeof act);
  act.sa_handler = handler;
  sigaction(SIGUSR1, &act, NULL);
  for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, looks, NULL);
  pthread_create(&t[3], NULL, gets, NULL);
  pthread_create(&t[4], NULL, sends, &t[3]);
  usleep(700000);
  stop = 1;
  for (int i = 0; i < 5; i++) pthread_join(t[i], NULL);
  printf("wrong %d\n", wrong);
  return 0;
}
