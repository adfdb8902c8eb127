// SPDX-License-Identifier: MIT
// Signals come for the process while the threads that would take them keep ending. Each reaches a living thread at once, even a thread that
// is asleep.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static atomic_int handled, stop;
static void count(int sig) { handled++; }

static void unblock(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}
static void* sleeps(void* p) {
  unblock();
  while (!stop) usleep(50000000);
  return p;
}
static void* ends(void* p) {
  unblock();
  return p;
}
static void* makes(void* p) {
  while (!stop) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, ends, NULL);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  }
  return p;
}

int main() {
  struct sigaction a;
  memset(&a, 0, sizeof a);
  a.sa_handler = count;
  sigaction(SIGRTMIN, &a, NULL);
  sigaction(SIGUSR1, &a, NULL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  pthread_t t, m[2];
  pthread_create(&t, NULL, sleeps, NULL);
  for (int i = 0; i < 2; i++) pthread_create(&m[i], NULL, makes, NULL);
  int lost = 0;
  for (int i = 0; i < 1500 && lost < 3; i++) {
    int before = handled;
    if (i % 2) kill(getpid(), SIGUSR1);
    else sigqueue(getpid(), SIGRTMIN, (union sigval){i});
    int waited = 0;
    while (handled == before && waited < 20000) usleep(waited < 10 ? 20 : 500), waited++;
    lost += handled == before;
  }
  stop = 1;
  kill(getpid(), SIGUSR1);
  for (int i = 0; i < 2; i++) pthread_join(m[i], NULL);
  pthread_kill(t, SIGUSR1);
  pthread_join(t, NULL);
  printf("lost %d\n", lost);
  return 0;
}
