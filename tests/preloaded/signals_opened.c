// SPDX-License-Identifier: MIT
// A signal is sent to the process while all threads block it. Its handler runs before the call returns that lets it in.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { kRounds = 500 };
enum Way { kMask, kHandler, kSuspend, kPoll, kWays };
static const char* const names[] = {"pthread_sigmask", "the end of a handler", "sigsuspend", "ppoll"};
static sem_t shut, sent, came, looked;
static atomic_int handled;
static int pipes[2];
static sigset_t usr1, usr2, all_but_usr2;

static void wait_for(sem_t* s) {
  while (sem_wait(s)) {
  }
}
static void on_usr1(int sig) {
  handled += sig == SIGUSR1;
  sem_post(&came);
}
static void on_usr2(int sig) {
  (void)sig;
  sem_post(&shut);
  wait_for(&sent);
}

// Blocks the signal, says so, waits until it has been sent, and lets it in again.
static void let_in(enum Way way) {
  struct pollfd p = {pipes[0], POLLIN, 0};
  char byte;
  switch (way) {
    case kMask:
      pthread_sigmask(SIG_BLOCK, &usr1, NULL);
      on_usr2(0);
      pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
      break;
    case kHandler: pthread_kill(pthread_self(), SIGUSR2); break;
    case kSuspend: sigsuspend(&all_but_usr2); break;
    case kPoll:
      sem_post(&shut);
      ppoll(&p, 1, NULL, &all_but_usr2);
      if (read(pipes[0], &byte, 1) != 1) perror("read");
      break;
    case kWays: break;
  }
}
static void* lets_in(void* p) {
  long late = 0;
  if (*(enum Way*)p == kHandler) pthread_sigmask(SIG_UNBLOCK, &usr2, NULL);
  for (int i = 0; i < kRounds; i++) {
    int before = handled;
    let_in(*(enum Way*)p);
    late += handled == before;
    wait_for(&came);
    sem_post(&looked);
  }
  return (void*)late;
}

int main(void) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, NULL);
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  all_but_usr2 = all;
  sigdelset(&all_but_usr2, SIGUSR2);
  sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_usr1}, NULL);
  sigaction(SIGUSR2, &(struct sigaction){.sa_handler = on_usr2, .sa_mask = all}, NULL);
  if (pipe(pipes)) return 1;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  sigset_t mask = all;
  sigdelset(&mask, SIGUSR1);
  pthread_attr_setsigmask_np(&attributes, &mask);
  for (enum Way way = 0; way < kWays; way++) {
    pthread_t t;
    void* late;
    handled = 0;
    pthread_create(&t, &attributes, lets_in, &way);
    for (int i = 0; i < kRounds; i++) {
      if (way == kSuspend) pthread_kill(t, SIGUSR2);
      wait_for(&shut);
      kill(getpid(), SIGUSR1);
      if (way == kPoll && write(pipes[1], "", 1) != 1) perror("write");
      if (way != kPoll) sem_post(&sent);
      wait_for(&looked);
    }
    pthread_join(t, &late);
    printf("%s: %d handled, %ld late\n", names[way], handled, (long)late);
  }
  return 0;
}
