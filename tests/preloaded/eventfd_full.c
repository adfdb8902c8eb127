// SPDX-License-Identifier: MIT
// Writes to an eventfd wait while its counter has no room, and go on when it is read. Such a wait can be cancelled.
#include <assert.h>
#include <pthread.h>
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

static void* writer(void* p) {
  uint64_t n = 1 + (uint64_t)(uintptr_t)p;
  struct iovec v = {&n, sizeof n};
  assert(((uintptr_t)p % 2 ? write(fd, &n, sizeof n) : writev(fd, &v, 1)) == sizeof n);
  written++;
  return NULL;
}

int main(void) {
  pthread_t t[kWriters];
  void* result;
  uint64_t n = kFull, sum = 0;
  assert((fd = eventfd(0, EFD_CLOEXEC)) >= 0);
  assert(write(fd, &n, sizeof n) == sizeof n);
  for (long i = 0; i < kWriters; i++) assert(pthread_create(&t[i], NULL, writer, (void*)i) == 0);
  usleep(50000);
  printf("written into a full counter: %d\n", written);

  pthread_t cancelled;
  assert(pthread_create(&cancelled, NULL, writer, (void*)(uintptr_t)kWriters) == 0);
  usleep(20000);
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
