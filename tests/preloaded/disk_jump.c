// SPDX-License-Identifier: MIT
// A thread may be unwound out of a call that waits for a disk, by a handler that jumps or by asynchronous cancellation. It leaves nothing
// behind: neither a place in a queue on a stack that is gone, nor a turn for which others wait.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { kJumps = 90, kCancels = 100 };
static sigjmp_buf place;
static atomic_int armed, jumps;
static int fd;

static void jump(int sig) {
  if (!atomic_exchange(&armed, 0)) return;
  atomic_fetch_add(&jumps, 1);
  siglongjmp(place, 1);
}
static void* jumper(void* p) {
  while (atomic_load(&jumps) < kJumps) {
    if (sigsetjmp(place, 1)) continue;
    atomic_store(&armed, 1);
    for (;;) fsync(fd);
  }
  return p;
}
static void* endless(void* p) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  for (;;) fsync(fd);
  return p;
}

int main(void) {
  char name[] = "fileXXXXXX";
  if ((fd = mkostemp(name, O_CLOEXEC)) < 0 || unlink(name) != 0) abort();
  sigaction(SIGUSR1, &(struct sigaction){.sa_handler = jump}, NULL);
  pthread_t t;
  pthread_create(&t, NULL, jumper, NULL);
  while (atomic_load(&jumps) < kJumps) {
    if (atomic_load(&armed)) pthread_kill(t, SIGUSR1);
    nanosleep(&(struct timespec){0, 200000}, NULL);
  }
  pthread_join(t, NULL);
  printf("%d jumps\n", atomic_load(&jumps));
  int cancelled = 0;
  for (int i = 0; i < kCancels; i++) {
    void* r;
    pthread_create(&t, NULL, endless, NULL);
    nanosleep(&(struct timespec){0, 300000}, NULL);
    pthread_cancel(t);
    pthread_join(t, &r);
    cancelled += r == PTHREAD_CANCELED;
  }
  printf("%d cancelled, then %d %d\n", cancelled, fsync(fd), fdatasync(fd));
  return 0;
}
