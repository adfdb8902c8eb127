// SPDX-License-Identifier: MIT
// Stops for a debugger in main itself, while another thread waits.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int about_to_wait;
static void* waits(void* p) {
  about_to_wait = 1;
  pthread_mutex_lock(&mutex);
  return p;
}
int main(void) {
  pthread_t t;
  pthread_mutex_lock(&mutex);
  pthread_create(&t, NULL, waits, NULL);
  while (!about_to_wait) usleep(1000);
  usleep(50000);
#if defined(__x86_64__)
  __asm__ volatile("int3");
#else
  __builtin_trap();
#endif
  return 0;
}
