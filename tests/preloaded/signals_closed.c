// SPDX-License-Identifier: MIT
// A thread has waited with a mask that lets a signal in. From the end of that call on, all threads block the signal, so it stays pending and
// its default action does not end the process.
#define _GNU_SOURCE
#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

enum { kRounds = 300 };
enum Way { kMask, kHandler, kSuspend, kPoll, kSelect, kEpoll, kWays };
static const char* const names[] = {"pthread_sigmask", "the end of a handler", "sigsuspend", "ppoll", "pselect", "epoll_pwait"};
static sem_t waits, wake;
static int pipes[2], epoll;
static pthread_t waiter;
static sigset_t none, usr1;

static void wait_for(sem_t* s) {
  while (sem_wait(s)) {
  }
}
static void on_usr2(int sig) { (void)sig; }
static void on_winch(int sig) {
  (void)sig;
  pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
  sem_post(&waits);
  wait_for(&wake);
}

static void wait_with_open_mask(enum Way way) {
  struct pollfd p = {pipes[0], POLLIN, 0};
  struct epoll_event e;
  fd_set set;
  char byte;
  switch (way) {
    case kMask:
      pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
      sem_post(&waits);
      wait_for(&wake);
      pthread_sigmask(SIG_BLOCK, &usr1, NULL);
      return;
    case kHandler: pthread_kill(pthread_self(), SIGWINCH); return;
    case kSuspend:
      sem_post(&waits);
      assert(sigsuspend(&none) == -1);
      return;
    case kPoll:
      sem_post(&waits);
      assert(ppoll(&p, 1, NULL, &none) == 1);
      break;
    case kSelect:
      FD_ZERO(&set);
      FD_SET(pipes[0], &set);
      sem_post(&waits);
      assert(pselect(pipes[0] + 1, &set, NULL, NULL, NULL, &none) == 1);
      break;
    case kEpoll:
      sem_post(&waits);
      assert(epoll_pwait(epoll, &e, 1, -1, &none) == 1);
      break;
    case kWays: return;
  }
  assert(kill(getpid(), SIGUSR1) == 0);  // as early as can be
  assert(read(pipes[0], &byte, 1) == 1);
}

static void* wait_and_send(void* p) {
  enum Way way = *(enum Way*)p;
  sigset_t winch;
  sigemptyset(&winch);
  sigaddset(&winch, SIGWINCH);
  pthread_sigmask(SIG_UNBLOCK, &winch, NULL);
  for (int i = 0; i < kRounds; i++) {
    wait_with_open_mask(way);
    if (way == kMask || way == kHandler || way == kSuspend) assert(kill(getpid(), SIGUSR1) == 0);
    assert(sigwaitinfo(&usr1, NULL) == SIGUSR1);
  }
  return NULL;
}

int main(void) {
  sigset_t all;
  sigfillset(&all);
  sigemptyset(&none);
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  assert(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
  assert(sigaction(SIGUSR2, &(struct sigaction){.sa_handler = on_usr2}, NULL) == 0);
  assert(sigaction(SIGWINCH, &(struct sigaction){.sa_handler = on_winch}, NULL) == 0);
  assert(sem_init(&waits, 0, 0) == 0 && sem_init(&wake, 0, 0) == 0 && pipe(pipes) == 0 && (epoll = epoll_create1(0)) >= 0);
  assert(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &(struct epoll_event){.events = EPOLLIN}) == 0);
  for (enum Way way = 0; way < kWays; way++) {
    assert(pthread_create(&waiter, NULL, wait_and_send, &way) == 0);
    for (int i = 0; i < kRounds; i++) {
      wait_for(&waits);
      if (way == kMask || way == kHandler) sem_post(&wake);
      else if (way == kSuspend) pthread_kill(waiter, SIGUSR2);
      else assert(write(pipes[1], "x", 1) == 1);
    }
    pthread_join(waiter, NULL);
    printf("%s: %d\n", names[way], kRounds);
  }
}
