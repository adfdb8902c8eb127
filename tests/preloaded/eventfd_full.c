// SPDX-License-Identifier: MIT
// Writes to an eventfd wait while its counter has no room, and go on when it is read. Such a wait can be cancelled.
#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kWriters = 8 };
static const uint64_t kFull = 0xfffffffffffffffe;
static int fd;
static atomic_int written;
static sem_t begun;

static void* writer(void* p) {
  uint64_t n = 1 + (uint64_t)(uintptr_t)p;
  struct iovec v = {&n, sizeof n};
  sem_post(&begun);
  assert(((uintptr_t)p % 2 ? write(fd, &n, sizeof n) : writev(fd, &v, 1)) == sizeof n);
  written++;
  return NULL;
}

static void start(pthread_t* t, long i) {
  assert(pthread_create(t, NULL, writer, (void*)i) == 0);
  while (sem_wait(&begun)) {
  }
}

int main(void) {
  pthread_t t[kWriters];
  void* result;
  uint64_t n = kFull, sum = 0;
  assert(sem_init(&begun, 0, 0) == 0 && (fd = eventfd(0, EFD_CLOEXEC)) >= 0);
  assert(write(fd, &n, sizeof n) == sizeof n);
  for (long i = 0; i < kWriters; i++) start(&t[i], i);
  printf("written into a full counter: %d\n", written);

  pthread_t cancelled;
  start(&cancelled, kWriters);
  assert(pthread_cancel(cancelled) == 0 && pthread_join(cancelled, &result) == 0);
  printf("cancelled: %d\n", result == PTHREAD_CANCELED);

  assert(read(fd, &n, sizeof n) == sizeof n);
  printf("full: %d\n", n == kFull);
  while (sum < kWriters * (kWriters + 1) / 2) {
    assert(read(fd, &n, sizeof n) == sizeof n);
    sum += n;
  }
  for (int i = 0; i < kWriters; i++) pthread_join(t[i], NULL);
  printf("written: %d, read: %d\n", written, (int)sum);
}
