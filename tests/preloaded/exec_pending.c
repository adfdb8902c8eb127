// SPDX-License-Identifier: MIT
// A program that a thread executes finds pending what was pending for that thread and for the process, in order, and nothing else. What was
// pending for other threads is gone. A call that fails before changes nothing.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/fsuid.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kSignals = 4 };
static int nth(int i) { return i < 2 ? (int[]){SIGUSR1, SIGUSR2}[i] : SIGRTMIN + i; }
static sigset_t ours(void) {
  sigset_t s;
  sigemptyset(&s);
  for (int i = 0; i < kSignals; i++) sigaddset(&s, nth(i));
  return s;
}
static const char* name_of(int sig) {
  for (int i = 0; i < kSignals; i++)
    if (nth(i) == sig) return (const char*[]){"USR1", "USR2", "real-time 2", "real-time 3"}[i];
  return "another";
}

static void show_pending(const char* when) {
  sigset_t all, mask;
  siginfo_t i;
  struct timespec at_once = {0, 0};
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  sigfillset(&all);
  printf("%s, blocked", when);
  for (int k = 1; k <= SIGRTMAX; k++)
    if (sigismember(&mask, k) > 0) printf(" %s", name_of(k));
  printf(":");
  for (int sig; (sig = sigtimedwait(&all, &i, &at_once)) > 0;) {
    printf(" %s", name_of(sig));
    if (i.si_code == SI_QUEUE) printf("=%d", i.si_value.sival_int);
  }
  printf("\n");
  fflush(stdout);
}

static sem_t ready, go;
static void handler(int sig) { (void)sig; }

static void* other(void* p) {
  sem_post(&ready);
  while (sem_wait(&go) != 0) {
  }
  for (;;) pause();
  return p;
}

static bool bound, fails;
static void* executes(void* p) {
  if (bound) setfsuid(getuid());
  sem_post(&ready);
  while (sem_wait(&go) != 0) {
  }
  if (fails) {
    execl("./no-such-file", "x", NULL);
    assert(errno == ENOENT);
    sigset_t now;
    sigpending(&now);
    for (int i = 0; i < kSignals; i++) assert(sigismember(&now, nth(i)));
  }
  if (bound) execle("/proc/self/exe", "exec_pending", "pending", NULL, (char*[]){"OF_EXECLE=1", NULL});
  execl("/proc/self/exe", "exec_pending", "pending", NULL);
  return p;
}

static void one(int from_main) {
  sigset_t s = ours();
  for (int i = 0; i < kSignals; i++) signal(nth(i), handler);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
  sem_init(&ready, 0, 0);
  sem_init(&go, 0, 0);
  pthread_t t[3], self = pthread_self();
  for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, i == 0 && !from_main ? executes : other, NULL);
  for (int i = 0; i < 3; i++) sem_wait(&ready);
  pthread_t to = from_main ? self : t[0];
  for (int k = 1; k <= 3; k++) {
    pthread_sigqueue(to, nth(2), (union sigval){.sival_int = k});
    pthread_sigqueue(t[1], nth(3), (union sigval){.sival_int = 100 + k});  // lost
    sigqueue(getpid(), nth(3), (union sigval){.sival_int = 10 + k});
  }
  pthread_kill(to, SIGUSR1);
  pthread_kill(t[2], SIGUSR1);  // lost
  kill(getpid(), SIGUSR2);
  for (int i = 0; i < 4; i++) sem_post(&go);
  if (from_main) {
    sem_init(&ready, 0, 0);
    executes(NULL);
  }
  for (;;) pause();
}

int main(int argc, char** argv) {
  if (argc == 2) {
    show_pending(getenv("OF_EXECLE") ? getenv("HOME") ? "with another environment too" : "with that environment" : "after");
    return 0;
  }
  for (int i = 0; i < 8; i++) {
    pid_t p = fork();
    if (p == 0) {
      bound = i & 2;
      fails = i & 4;
      one(i % 2);
    }
    int status;
    waitpid(p, &status, 0);
    if (status) printf("%d: status %x\n", i, status);
  }
}
