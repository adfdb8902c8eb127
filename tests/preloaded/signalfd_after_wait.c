// SPDX-License-Identifier: MIT
// A signalfd shows what a thread has sent to itself, also if the same signal has just ended a wait of that thread, and other threads were
// asked to take it meanwhile. sigpending() leaves everything as it is.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { kThreads = 8, kRounds = 100, kSignals = 3 };
static _Thread_local volatile int handled;

static void handler(int sig) {
  (void)sig;
  handled++;
}

static int shown(int fd) {
  struct signalfd_siginfo s;
  int values = 0;
  while (read(fd, &s, sizeof s) == sizeof s) values = values * 10 + s.ssi_int;
  assert(errno == EAGAIN);
  return values;
}

static void* sends(void* p) {
  int sig = *(int*)p, epoll = epoll_create1(EPOLL_CLOEXEC), were_pending = 0, in_order = 0;
  sigset_t own, pending, open;
  sigemptyset(&own);
  sigaddset(&own, sig);
  pthread_sigmask(SIG_SETMASK, NULL, &open);
  sigdelset(&open, sig);
  int fd = signalfd(-1, &own, SFD_NONBLOCK | SFD_CLOEXEC);
  for (int round = 0; round < kRounds; round++) {
    struct epoll_event event;
    handled = 0;
    for (int i = 0; i < 2; i++) assert(sigqueue(getpid(), sig, (union sigval){.sival_int = 9}) == 0);
    assert(epoll_pwait(epoll, &event, 1, 60000, &open) == -1 && errno == EINTR);
    for (int n = handled; n < 2; n++) assert(sigtimedwait(&own, NULL, &(struct timespec){60, 0}) == sig);
    for (int i = 1; i <= kSignals; i++) assert(pthread_sigqueue(pthread_self(), sig, (union sigval){.sival_int = i}) == 0);
    sigpending(&pending);
    were_pending += sigismember(&pending, sig);
    in_order += shown(fd) == 123;
  }
  if (were_pending != kRounds || in_order != kRounds) printf("%d pending, %d shown in order\n", were_pending, in_order);
  return NULL;
}

int main(void) {
  int sigs[kThreads];
  sigset_t set;
  sigemptyset(&set);
  for (int i = 0; i < kThreads; i++) {
    sigs[i] = SIGRTMIN + 3 + i;
    sigaddset(&set, sigs[i]);
    sigaction(sigs[i], &(struct sigaction){.sa_handler = handler}, NULL);
  }
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  pthread_t t[kThreads];
  for (int i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, sends, &sigs[i]);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  puts("done");
  return 0;
}
