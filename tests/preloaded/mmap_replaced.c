// SPDX-License-Identifier: MIT
// The program's own mmap, munmap and mprotect take a lock, as the memory hooks of MPI's transports do. The library makes kernel threads, stacks
// and records meanwhile, and must not call them where it cannot wait for a lock.
// libs: -rdynamic
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kThreads = 40, kSpinners = 4, kDeep = 50 };
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static _Thread_local int depth;
static atomic_bool over;

static void enter(void) {
  if (++depth > kDeep) {
    static const char text[] = "the lock's own calls come back here\n";
    (void)!write(2, text, sizeof text - 1);
    _exit(99);
  }
  pthread_rwlock_rdlock(&lock);
}
static long leave(long result) {
  pthread_rwlock_unlock(&lock);
  depth--;
  return result;
}

void* mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) {
  enter();
  return (void*)leave(syscall(SYS_mmap, at, size, protection, flags, fd, offset));
}
int munmap(void* at, size_t size) {
  enter();
  return (int)leave(syscall(SYS_munmap, at, size));
}
int mprotect(void* at, size_t size, int protection) {
  enter();
  return (int)leave(syscall(SYS_mprotect, at, size, protection));
}

static void* waits_in_kernel(void* p) {
  for (int i = 0; i < 5; i++) {
    pid_t child = fork();
    if (child == 0) {
      usleep(10000);
      _exit(0);
    }
    while (waitpid(child, NULL, 0) < 0) assert(errno == EINTR);
  }
  return p;
}
static void* spins(void* p) {
  while (!over) {
  }
  return p;
}
static void* nothing(void* p) { return p; }

int main(void) {
  pthread_t t[kThreads + kSpinners];
  for (int i = 0; i < kThreads + kSpinners; i++) assert(pthread_create(&t[i], NULL, i < kThreads ? waits_in_kernel : spins, NULL) == 0);
  for (int i = 0; i < 200; i++) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, (size_t)(1 + i % 20) << 20);
    pthread_t short_lived;
    assert(pthread_create(&short_lived, &attr, nothing, NULL) == 0 && pthread_join(short_lived, NULL) == 0);
    pthread_attr_destroy(&attr);
  }
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  over = 1;
  for (int i = kThreads; i < kThreads + kSpinners; i++) pthread_join(t[i], NULL);
  puts("ended");
  return 0;
}
