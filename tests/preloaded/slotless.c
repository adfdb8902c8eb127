// SPDX-License-Identifier: MIT
// A thread that comes back from a long system call while all others sleep in the kernel can still sleep for a short time.
#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static int fds[2];
static void* sleep_in_kernel(void* p) {
  char c;
  assert(read(fds[0], &c, 1) == 1);
  return p;
}
int main() {
  assert(pipe(fds) == 0);
  enum { kThreads = 20 };
  pthread_t t[kThreads];
  for (int i = 0; i < kThreads; i++) pthread_create(&t[i], 0, sleep_in_kernel, 0);
  poll(0, 0, 100);  // the worker loses the slot
  poll(0, 0, 100);  // and the watcher falls asleep
  for (int i = 0; i < 10; i++) usleep(1000);
  char bytes[kThreads] = "";
  assert(write(fds[1], bytes, kThreads) == kThreads);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], 0);
  puts("ok");
  return 0;
}
