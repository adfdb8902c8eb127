// SPDX-License-Identifier: MIT
// Two halves of a value, each of them atomic, are stored one after the other: a reader may see half of an update.
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#ifdef MENDED
static _Atomic uint64_t both;
static void put(uint32_t v) { both = (uint64_t)v << 32 | v; }
static uint64_t get() { return both; }
#else
static _Atomic uint32_t low, high;
static void put(uint32_t v) {
  low = v;
  high = v;
}
static uint64_t get() {
  uint64_t h = high;
  return h << 32 | low;
}
#endif
static void* writes(void* p) {
  put(1);
  put(2);
  return p;
}
static void* reads(void* p) {
  uint64_t v = get();
  assert(v >> 32 == (uint32_t)v);
  return p;
}
int main() {
  pthread_t t[2];
  pthread_create(&t[0], 0, writes, 0);
  pthread_create(&t[1], 0, reads, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
