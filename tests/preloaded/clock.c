// SPDX-License-Identifier: MIT
// A timer signals the thread that it names, and a thread keeps its name, wherever threads run.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int stop;
static void* busy(void* p) {
  while (!stop) {
    for (volatile int i = 0; i < 20000; i++) {
    }
    sched_yield();
  }
  return p;
}

static __thread volatile int mine;
static volatile int others, value_wrong;
static void on_timer(int sig, siginfo_t* info, void* context) {
  if (info->si_code != SI_TIMER || info->si_value.sival_int != 42) value_wrong = 1;
  if (mine) mine++;
  else others++;
}

static timer_t make_timer(pid_t tid, int sig) {
  struct sigevent e;
  memset(&e, 0, sizeof e);
  e.sigev_notify = SIGEV_THREAD_ID;
  e.sigev_signo = sig;
  e.sigev_value.sival_int = 42;
  e._sigev_un._tid = tid;
  timer_t t;
  assert(timer_create(CLOCK_MONOTONIC, &e, &t) == 0);
  struct itimerspec often = {{0, 1000000}, {0, 1000000}};
  assert(timer_settime(t, 0, &often, NULL) == 0);
  return t;
}

static void* timed(void* p) {
  mine = 1;
  timer_t t = make_timer(gettid(), SIGRTMIN);
  while (mine < 30) sched_yield();
  assert(timer_delete(t) == 0);
  return p;
}
// Makes and deletes timers while other threads do the same. No thread may get a late signal of a deleted timer.
static void* timed_briefly(void* p) {
  for (int i = 0; i < 60; i++) {
    mine = 1;
    timer_t t = make_timer(gettid(), SIGRTMIN);
    struct itimerspec often = {{0, 300000}, {0, 300000}};
    assert(timer_settime(t, 0, &often, NULL) == 0);
    while (mine < 2) sched_yield();
    assert(timer_delete(t) == 0);
  }
  return p;
}
static void* timed_by_wait(void* p) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN + 1);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  timer_t t = make_timer(gettid(), SIGRTMIN + 1);
  for (int i = 0; i < 10; i++) {
    siginfo_t info;
    int sig;
    while ((sig = sigwaitinfo(&set, &info)) == -1 && errno == EINTR) {
    }
    assert(sig == SIGRTMIN + 1 && info.si_value.sival_int == 42);
  }
  assert(timer_delete(t) == 0);
  return p;
}

static void keeps(const char* name) {
  for (int i = 0; i < 1000; i++) {
    char b[16] = "", c[16] = "";
    assert(prctl(PR_GET_NAME, b) == 0 && strcmp(b, name) == 0);
    assert(pthread_getname_np(pthread_self(), c, sizeof c) == 0 && strcmp(c, name) == 0);
    sched_yield();
  }
}
static void* inherits(void* p) {
  keeps(p);
  return p;
}
static void* named(void* p) {
  assert(prctl(PR_SET_NAME, "a name longer than sixteen") == 0);
  keeps("a name longer t");
  pthread_t t;
  assert(pthread_create(&t, NULL, inherits, "a name longer t") == 0 && pthread_join(t, NULL) == 0);
  assert(pthread_setname_np(pthread_self(), "short") == 0);
  keeps("short");
  return p;
}
static void process_is(const char* name) {
  char b[32] = "";
  FILE* f = fopen("/proc/self/comm", "r");
  assert(f && fgets(b, sizeof b, f));
  fclose(f);
  b[strcspn(b, "\n")] = 0;
  assert(strcmp(b, name) == 0);
}

int main() {
  struct sigaction a;
  memset(&a, 0, sizeof a);
  a.sa_sigaction = on_timer;
  a.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGRTMIN, &a, NULL);
  sigaction(SIGRTMIN + 1, &a, NULL);
  pthread_t t[4], b[6];
  for (int i = 0; i < 6; i++) pthread_create(&b[i], NULL, busy, NULL);

  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, i == 3 ? timed_by_wait : timed, NULL);
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  timed(NULL);
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, timed_briefly, NULL);
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  printf("timers: at others %d, wrong %d\n", others, value_wrong);
  struct sigevent e;
  memset(&e, 0, sizeof e);
  e.sigev_notify = SIGEV_THREAD_ID;
  e.sigev_signo = SIGRTMIN;
  e._sigev_un._tid = 999999999;
  timer_t bad;
  assert(timer_create(CLOCK_MONOTONIC, &e, &bad) == -1 && errno == EINVAL);

  assert(prctl(PR_SET_NAME, "main's") == 0);
  keeps("main's");
  process_is("main's");
  pthread_create(&t[0], NULL, inherits, "main's");
  pthread_join(t[0], NULL);
  assert(pthread_setname_np(pthread_self(), "again") == 0);
  keeps("again");
  process_is("again");
  pthread_create(&t[0], NULL, named, NULL);
  pthread_join(t[0], NULL);
  assert(pthread_create(&t[0], NULL, busy, NULL) == 0);
  assert(pthread_setname_np(t[0], "by main") == 0);
  char name[16];
  assert(pthread_getname_np(t[0], name, sizeof name) == 0 && strcmp(name, "by main") == 0);
  process_is("again");
  stop = 1;
  pthread_join(t[0], NULL);
  for (int i = 0; i < 6; i++) pthread_join(b[i], NULL);
  puts("names kept");
  return 0;
}
