// SPDX-License-Identifier: MIT
// A sequence lock whose reader looks at the sequence before it reads, but not after.
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
static atomic_uint sequence;
static atomic_int low, high;
static void* writes(void* p) {
  for (int i = 1; i < 3; i++) {
    atomic_fetch_add(&sequence, 1);
    atomic_store(&low, i);
    atomic_store(&high, i);
    atomic_fetch_add(&sequence, 1);
  }
  return p;
}
static void* reads(void* p) {
  for (int tries = 0; tries < 10; tries++) {
    unsigned before = atomic_load(&sequence);
    if (before & 1) continue;
    int l = atomic_load(&low), h = atomic_load(&high);
#ifdef MENDED
    if (atomic_load(&sequence) != before) continue;
#endif
    assert(l == h);
    break;
  }
  return p;
}
int main() {
  pthread_t t[2];
  pthread_create(&t[0], 0, writes, 0);
  pthread_create(&t[1], 0, reads, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
