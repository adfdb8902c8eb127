// SPDX-License-Identifier: MIT
// A thread waits for a signalfd in every way, and others send signals to that thread alone. It gets each of them, also those that were pending
// before there was a signalfd.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/fsuid.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kPlainRead, kPoll, kPollMasked, kEpoll, kEpollMasked, kEpollAfterOthers, kSelect, kNaps, kWays };
static const char* const names[] = {"read", "poll", "ppoll", "epoll_wait", "epoll_pwait", "epoll_wait after other reads", "select", "naps"};
enum { kEarly = 3, kRounds = 60 };

static int way;
static bool own, with_early;
static atomic_int got, wrong;
static sem_t sent_early, shown_early;
static sigset_t set;

static void wait_for(int fd, int epoll, int other) {
  struct epoll_event e;
  struct pollfd p = {fd, POLLIN, 0};
  fd_set f;
  char c;
  switch (way) {
    case kPoll: poll(&p, 1, -1); break;
    case kPollMasked: ppoll(&p, 1, NULL, &set); break;
    case kEpoll: epoll_wait(epoll, &e, 1, -1); break;
    case kEpollMasked: epoll_pwait(epoll, &e, 1, -1, &set); break;
    case kEpollAfterOthers:
      if (read(other, &c, 1) != -1 || errno != EAGAIN) wrong++;
      epoll_wait(epoll, &e, 1, -1);
      break;
    case kSelect:
      FD_ZERO(&f);
      FD_SET(fd, &f);
      select(fd + 1, &f, NULL, NULL, NULL);
      break;
    case kNaps: usleep(300); break;
  }
}

static void read_one(int fd, int epoll, int other, int value) {
  struct signalfd_siginfo i;
  struct iovec v = {&i, sizeof i};
  do wait_for(fd, epoll, other);
  while ((value % 2 ? read(fd, &i, sizeof i) : readv(fd, &v, 1)) != sizeof i);
  if (i.ssi_int != value || i.ssi_code != SI_QUEUE || i.ssi_pid != (unsigned)getpid()) wrong++;
  got = value;
}

static void* receives(void* p) {
  if (own) setfsuid(getuid());  // gives it a kernel thread of its own
  if (with_early)
    while (sem_wait(&sent_early) != 0) {
    }
  int fd = signalfd(-1, &set, way == kPlainRead ? 0 : SFD_NONBLOCK), epoll = epoll_create1(0), others[2];
  if (pipe2(others, O_NONBLOCK) != 0) wrong++;
  struct epoll_event e = {.events = EPOLLIN};
  epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
  if (with_early)
    for (int i = 1; i <= kEarly; i++) read_one(fd, epoll, others[0], i);
  sem_post(&shown_early);
  for (int i = 1; i <= kRounds; i++) read_one(fd, epoll, others[0], i);
  close(fd);
  close(epoll);
  close(others[0]);
  close(others[1]);
  return p;
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  int sig = SIGRTMIN + 4;
  sigemptyset(&set);
  sigaddset(&set, sig);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  for (way = 0; way < kWays; way++) {
    for (int k = 0; k < 4; k++) {
      own = k & 1, with_early = k & 2;
      sem_init(&sent_early, 0, 0);
      sem_init(&shown_early, 0, 0);
      got = 0;
      pthread_t t;
      pthread_create(&t, NULL, receives, NULL);
      if (with_early) {
        for (int i = 1; i <= kEarly; i++) pthread_sigqueue(t, sig, (union sigval){.sival_int = i});
        sem_post(&sent_early);
      }
      while (sem_wait(&shown_early) != 0) {
      }
      for (int i = 1; i <= kRounds;) {
        int burst = i % 5 == 0 && i + 2 <= kRounds ? 3 : 1;
        for (; burst--; i++) pthread_sigqueue(t, sig, (union sigval){.sival_int = i});
        for (int n = 0; n < 60000 && got < i - 1; n++) usleep(i % 2 ? 20 : 1000);  // the limit only finds hangs
        if (got < i - 1) {
          printf("%s: %d did not come, %d wrong\n", names[way], got + 1, wrong);
          _exit(1);
        }
      }
      pthread_join(t, NULL);
    }
    printf("%s: all came, %d wrong\n", names[way], wrong);
  }
}
