// SPDX-License-Identifier: MIT
// Signals that are queued to one thread, which blocks them and lets them in by turns, beside a signalfd that might show them. The thread gets
// all of them, in their order, and no other thread gets one, though main never blocks them.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/fsuid.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { kAtOnce = 5, kRounds = 200, kStream = 4000 };

static int sig;
static pthread_t taker;
static _Atomic int taken, last, disordered, elsewhere, foreign_fields;

static void got(const siginfo_t* i) {
  if (!pthread_equal(pthread_self(), taker)) elsewhere++;
  if (i->si_value.sival_int != last + 1) disordered++;
  if (i->si_code != SI_QUEUE || i->si_pid != getpid() || i->si_uid != getuid() || i->si_errno) foreign_fields++;
  last = i->si_value.sival_int;
  taken++;
}
static void handler(int s, siginfo_t* i, void* context) {
  (void)s, (void)context;
  got(i);
}

static void send_one(int value) {
  union sigval v = {.sival_int = value};
  while (pthread_sigqueue(taker, sig, v) == EAGAIN) sched_yield();
}

static sigset_t blocked, open_;
static int by_fd;

static void let_in_by_mask(void) {
  pthread_sigmask(SIG_UNBLOCK, &blocked, NULL);
  pthread_sigmask(SIG_BLOCK, &blocked, NULL);
}
static void let_in_by_suspend(void) { sigsuspend(&open_); }
static void let_in_by_ppoll(void) {
  struct timespec at_once = {0, 0};
  ppoll(NULL, 0, &at_once, &open_);
}
static void let_in_by_wait(void) {
  siginfo_t i;
  struct timespec at_once = {0, 0};
  while (sigtimedwait(&blocked, &i, &at_once) > 0) got(&i);
}
static void let_in_by_fd(void) {
  struct signalfd_siginfo i;
  while (read(by_fd, &i, sizeof i) == sizeof i) {
    if (i.ssi_int != last + 1) disordered++;
    if (i.ssi_code != SI_QUEUE || i.ssi_pid != (unsigned)getpid() || i.ssi_errno) foreign_fields++;
    last = i.ssi_int;
    taken++;
  }
}
static void (*const ways[])(void) = {let_in_by_mask, let_in_by_suspend, let_in_by_ppoll, let_in_by_wait, let_in_by_fd};
static const char* const names[] = {"mask", "sigsuspend", "ppoll", "sigtimedwait", "read"};

static pthread_barrier_t step;
static _Atomic int sent;

static void* takes(void* unused) {
  setfsuid(getuid());  // gives it a kernel thread of its own, without which a signalfd would not show what others send to it
  pthread_sigmask(SIG_BLOCK, &blocked, NULL);
  for (int w = 0; w < 5; w++)
    for (int r = 0; r < kRounds; r++) {
      pthread_barrier_wait(&step);
      pthread_barrier_wait(&step);
      while (taken < sent) ways[w]();
      pthread_barrier_wait(&step);
    }
  pthread_barrier_wait(&step);
  for (int turn = 0; taken < kStream; turn++)
    if (turn % 5 != 1) ways[turn % 5]();  // sigsuspend would wait for one that may have been taken
  return unused;
}

static void report(const char* what) {
  printf("%s: all %d, disordered %d, elsewhere %d, with other fields %d\n", what, taken == sent, disordered, elsewhere, foreign_fields);
  disordered = elsewhere = foreign_fields = 0;
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  sig = SIGRTMIN + 3;
  sigemptyset(&blocked);
  sigemptyset(&open_);
  sigaddset(&blocked, sig);
  struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
  sigaction(sig, &a, NULL);
  by_fd = signalfd(-1, &blocked, SFD_NONBLOCK);
  pthread_barrier_init(&step, NULL, 2);
  pthread_create(&taker, NULL, takes, NULL);
  for (int w = 0; w < 5; w++) {
    for (int r = 0; r < kRounds; r++) {
      taken = last = sent = 0;
      pthread_barrier_wait(&step);
      while (sent < kAtOnce) send_one(++sent);
      pthread_barrier_wait(&step);
      pthread_barrier_wait(&step);
    }
    report(names[w]);
  }
  taken = last = sent = 0;
  pthread_barrier_wait(&step);
  while (sent < kStream) send_one(++sent);
  pthread_join(taker, NULL);
  report("in a stream");
}
