// SPDX-License-Identifier: MIT
// Publication by a plain flag.
#include <assert.h>
#include <pthread.h>
static int message, ready;
#ifdef MENDED
#define SET(v) __atomic_store_n(&ready, v, __ATOMIC_RELEASE)
#define READY() __atomic_load_n(&ready, __ATOMIC_ACQUIRE)
#else
#define SET(v) ready = v
#define READY() ready
#endif
static void* writes(void* p) {
  message = 42;
  SET(1);  // RACE
  return p;
}
static void* reads(void* p) {
  if (READY()) assert(message == 42);  // RACE
  return p;
}
int main() {
  pthread_t t[2];
  pthread_create(&t[0], 0, writes, 0);
  pthread_create(&t[1], 0, reads, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
