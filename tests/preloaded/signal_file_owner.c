// SPDX-License-Identifier: MIT
// The signals of a file reach the thread that owns it (F_OWNER_TID) however that waits, and whichever thread made it the owner. Another thread
// can block the same signal meanwhile. A thread in sigwait gets them without a handler too, also those that have no effect by default.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kRounds = 20 };
enum How { kInfo, kTimed, kSuspend, kPause, kSemaphore, kRead, kChild, kWays };
static const char* const names[kWays] = {"sigwaitinfo", "sigtimedwait", "sigsuspend", "pause", "sem_wait", "read", "waitpid"};

static int ends[2], nothing[2];
static pid_t child;  // that does not end
static sem_t ready, taken, never;
static int sent = SIGIO;
static _Thread_local volatile sig_atomic_t got;
static void handler(int sig, siginfo_t* info, void* context) { got++; }

static _Atomic int id;
static void own(int tid) {
  struct f_owner_ex owner = {F_OWNER_TID, tid};
  assert(fcntl(ends[0], F_SETOWN_EX, &owner) == 0);
}

static int wait_for_it(enum How how, const sigset_t* io) {
  sigset_t none;
  sigemptyset(&none);
  siginfo_t info = {0};
  struct timespec long_time = {100, 0};
  char c;
  switch (how) {
    case kInfo: return sigwaitinfo(io, &info) == sent && info.si_code == (sent == SIGIO ? SI_KERNEL : POLL_IN);
    case kTimed: return sigtimedwait(io, &info, &long_time) == sent;
    case kSuspend: return sigsuspend(&none) == -1 && errno == EINTR && got == 1;
    // The signal may come before these, or once more.
    case kPause: return got || (pause() == -1 && errno == EINTR && got);
    case kSemaphore: return got || (sem_wait(&never) == -1 && errno == EINTR && got);
    case kRead: return got || (read(nothing[0], &c, 1) == -1 && errno == EINTR && got);
    case kChild: return got || (waitpid(child, NULL, 0) == -1 && errno == EINTR && got);
    default: return 0;
  }
}

struct Case {
  enum How how;
  int by_itself;
};

static void* waits(void* p) {
  const struct Case* c = p;
  sigset_t io;
  sigemptyset(&io);
  sigaddset(&io, sent);
  if (c->how <= kSuspend) pthread_sigmask(SIG_BLOCK, &io, NULL);
  if (c->by_itself) own(gettid());
  id = gettid();
  for (int i = 0; i < kRounds; i++) {
    got = 0;
    sem_post(&ready);
    if (!wait_for_it(c->how, &io)) printf("%s: not the signal\n", names[c->how]);
    char byte;
    while (recv(ends[0], &byte, 1, MSG_DONTWAIT) == 1) continue;
    sem_post(&taken);
  }
  return p;
}

static _Atomic int stop;
static void* blocks(void* p) {
  sigset_t io;
  sigemptyset(&io);
  sigaddset(&io, SIGIO);
  while (!stop) {
    pthread_sigmask(SIG_BLOCK, &io, NULL);
    sched_yield();
    pthread_sigmask(SIG_UNBLOCK, &io, NULL);
    struct timespec nap = {0, 100000};
    nanosleep(&nap, NULL);
  }
  return p;
}

static void send_one(void) { assert(send(ends[1], "x", 1, 0) == 1); }

static int taken_soon(void) {
  struct timespec soon;
  clock_gettime(CLOCK_REALTIME, &soon);
  soon.tv_nsec += 20000000;
  if (soon.tv_nsec >= 1000000000) {
    soon.tv_nsec -= 1000000000;
    soon.tv_sec++;
  }
  return sem_timedwait(&taken, &soon) == 0;
}

static void round_trip(struct Case c) {
  pthread_t t;
  assert(pthread_create(&t, NULL, waits, &c) == 0);
  for (int i = 0; i < kRounds; i++) {
    sem_wait(&ready);
    for (int yields = i % 5 * 10; yields; yields--) sched_yield();  // it may wait already, or not yet
    if (i == 0 && !c.by_itself) own(id);
    send_one();
    // One signal that comes before pause() or its kin is handled, and does not end it. So these get more.
    while (c.how >= kPause && !taken_soon()) send_one();
    if (c.how < kPause) sem_wait(&taken);
  }
  pthread_join(t, NULL);
  printf("%s, %s: %d signals\n", names[c.how], c.by_itself ? "owner by itself" : "made the owner", kRounds);
}

int main(void) {
  struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
  sigaction(SIGIO, &a, NULL);
  assert(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && pipe(nothing) == 0);
  child = fork();
  if (child == 0)
    for (;;) pause();
  sem_init(&ready, 0, 0);
  sem_init(&taken, 0, 0);
  sem_init(&never, 0, 0);
  fcntl(ends[0], F_SETFL, O_ASYNC);
  pthread_t blocker;
  pthread_create(&blocker, NULL, blocks, NULL);
  for (int how = 0; how < kWays; how++)
    for (int by_itself = 1; by_itself >= 0; by_itself--) round_trip((struct Case){how, by_itself});
  stop = 1;
  pthread_join(blocker, NULL);
  signal(SIGIO, SIG_DFL);
  const int by_default[] = {SIGIO, SIGRTMIN + 1, SIGURG, SIGWINCH};
  for (int i = 0; i < 4; i++) {
    printf("no handler, %s:\n", strsignal(sent = by_default[i]));
    if (i) fcntl(ends[0], F_SETSIG, sent);
    for (int how = kInfo; how <= kTimed; how++)
      for (int by_itself = 1; by_itself >= 0; by_itself--) round_trip((struct Case){how, by_itself});
  }
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  return 0;
}
