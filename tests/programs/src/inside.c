// SPDX-License-Identifier: MIT
// inside N: N threads that wait in known places, one that computes, one that sleeps in the kernel, for debuggers and the like to look at.
// Prints "ready" when all threads are where they will stay, and ends when its stdin does.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

pthread_mutex_t lock_a = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t lock_b = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t never = PTHREAD_COND_INITIALIZER;
int waiting;
volatile unsigned long turns;

__attribute__((noinline)) void wait_for_never(int depth) {
  volatile int here = depth;
  if (depth > 0) {
    wait_for_never(depth - 1);
  } else {
    pthread_mutex_lock(&lock_b);
    waiting++;
    for (;;) pthread_cond_wait(&never, &lock_b);
  }
  here++;
}
void* waiter(void* p) {
  wait_for_never(3);
  return p;
}
__attribute__((noinline)) void compute(void) {
  for (;;) turns++;
}
void* computer(void* p) {
  pthread_setname_np(pthread_self(), "computer");
  compute();
  return p;
}
__attribute__((noinline)) void read_pipe(int fd) {
  char c;
  FILE* f = fdopen(fd, "r");
  fgetc(f);  // libc's own read waits in the kernel
}
void* reader(void* p) {
  pthread_setname_np(pthread_self(), "reader");
  int fd[2];
  if (pipe(fd)) abort();
  read_pipe(fd[0]);
  return p;
}
void* locker(void* p) {
  pthread_setname_np(pthread_self(), "locker");
  pthread_mutex_lock(&lock_a);
  return p;
}

int main(int argc, char** argv) {
  int n = argc > 1 ? atoi(argv[1]) : 3;
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 65536);
  pthread_t t;
  pthread_mutex_lock(&lock_a);
  pthread_create(&t, &attr, locker, NULL);
  for (int i = 0; i < n; i++)
    if (pthread_create(&t, &attr, waiter, NULL)) abort();
  for (int all = 0; !all; usleep(1000)) {
    pthread_mutex_lock(&lock_b);
    all = waiting == n;
    pthread_mutex_unlock(&lock_b);
  }
  pthread_create(&t, &attr, reader, NULL);
  pthread_create(&t, &attr, computer, NULL);
  usleep(50000);
  puts("ready");
  fflush(stdout);
  char c;
  while (read(0, &c, 1) > 0) {
  }
  _exit(0);  // since glibc 2.38 exit() waits for the stream that the reader holds
}
