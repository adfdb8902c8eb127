// SPDX-License-Identifier: MIT
// ABA: a stack by compare-and-swap, of atomics only. The top may be the same node again, while the node below it is not.
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
static _Atomic uint32_t below[4], taken[4];  // by the number of a node, from 1
static _Atomic uint64_t top;
#ifdef MENDED
#define NEXT_TAG(t) (((t) >> 32) + 1)  // each change gives another value
#else
#define NEXT_TAG(t) UINT64_C(0)
#endif
static void push(uint32_t node) {
  uint64_t t = top;
  atomic_store(&taken[node], 0);
  do below[node] = (uint32_t)t;
  while (!atomic_compare_exchange_strong(&top, &t, NEXT_TAG(t) << 32 | node));
}
static uint32_t pop() {
  uint64_t t = top;
  do
    if (!(uint32_t)t) return 0;
  while (!atomic_compare_exchange_strong(&top, &t, NEXT_TAG(t) << 32 | below[(uint32_t)t]));
  uint32_t before = atomic_exchange(&taken[(uint32_t)t], 1);
  assert(!before);
  return (uint32_t)t;
}
static void* one(void* p) {
  uint32_t a = pop();
  if (a) push(a);
  return p;
}
static void* two(void* p) {
  uint32_t a = pop(), b = pop();
  if (a) push(a);
  if (b) push(b);
  return p;
}
int main() {
  pthread_t t[3];
  for (uint32_t i = 1; i < 4; i++) push(i);
  pthread_create(&t[0], 0, one, 0);
  pthread_create(&t[1], 0, two, 0);
  pthread_create(&t[2], 0, two, 0);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
}
