// SPDX-License-Identifier: MIT
// Lazy initialization by an atomic state that is looked at and then set: two threads may both initialize.
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
static atomic_int state, made;  // state 1: being made, 2: made
static void* uses(void* p) {
#ifdef MENDED
  int free = 0;
  if (atomic_compare_exchange_strong(&state, &free, 1)) {
#else
  if (atomic_load(&state) == 0) {
    atomic_store(&state, 1);
#endif
    assert(atomic_fetch_add(&made, 1) == 0);
    atomic_store(&state, 2);
  }
  while (atomic_load(&state) != 2) sched_yield();
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, uses, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
