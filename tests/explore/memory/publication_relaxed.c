// SPDX-License-Identifier: MIT
// Publication by an atomic flag that is stored without an order. No processor need show the message before the flag.
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
static int message;
static atomic_int ready;
static void* writes(void* p) {
  message = 42;  // RACE
#ifdef MENDED
  atomic_thread_fence(memory_order_release);
#endif
  atomic_store_explicit(&ready, 1, memory_order_relaxed);
  return p;
}
static void* reads(void* p) {
  if (!atomic_load_explicit(&ready, memory_order_relaxed)) return p;
#ifdef MENDED
  atomic_thread_fence(memory_order_acquire);
#endif
  assert(message == 42);  // RACE
  return p;
}
int main() {
  pthread_t t[2];
  pthread_create(&t[0], 0, writes, 0);
  pthread_create(&t[1], 0, reads, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
