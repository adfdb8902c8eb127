// SPDX-License-Identifier: MIT
// Replaces libc's condition variables by ones that keep their attributes in another word, WORD. With -DNOWHERE, they do not keep them in
// the object at all.
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WORD 11

int pthread_cond_init(pthread_cond_t* c, const pthread_condattr_t* attr) {
  int shared = 0;
  clockid_t clock = CLOCK_REALTIME;
  memset(c, 0, sizeof *c);
  if (attr) {
    pthread_condattr_getpshared(attr, &shared);
    pthread_condattr_getclock(attr, &clock);
  }
#ifndef NOWHERE
  ((unsigned*)c)[WORD] = (shared == PTHREAD_PROCESS_SHARED) | (clock == CLOCK_MONOTONIC) << 1;
#endif
  return 0;
}

int pthread_cond_wait(pthread_cond_t* c, pthread_mutex_t* m) {
  unsigned* times = (unsigned*)c;
  unsigned seen = __atomic_load_n(times, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(m);
  syscall(SYS_futex, times, FUTEX_WAIT, seen, NULL, NULL, 0);
  return pthread_mutex_lock(m);
}

int pthread_cond_broadcast(pthread_cond_t* c) {
  unsigned* times = (unsigned*)c;
  __atomic_add_fetch(times, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, times, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
  return 0;
}

int pthread_cond_signal(pthread_cond_t* c) { return pthread_cond_broadcast(c); }
int pthread_cond_destroy(pthread_cond_t* c) { return c == NULL; }
