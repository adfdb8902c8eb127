// SPDX-License-Identifier: MIT
// A spin lock that looks whether it is free and then takes it.
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
static atomic_int locked, inside;
static void* enters(void* p) {
#ifdef MENDED
  while (atomic_exchange(&locked, 1)) {
  }
#else
  while (atomic_load(&locked)) {
  }
  atomic_store(&locked, 1);
#endif
  assert(atomic_fetch_add(&inside, 1) == 0);
  atomic_fetch_sub(&inside, 1);
  atomic_store(&locked, 0);
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, enters, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
