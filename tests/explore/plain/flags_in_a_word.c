// SPDX-License-Identifier: MIT
// Two threads set bit-fields of their own, but the fields are in one word, which each thread reads and writes as a whole.
#include <assert.h>
#include <pthread.h>
static struct {
  unsigned started : 1;
#ifdef MENDED
  unsigned : 0;
#endif
  unsigned urgent : 1;
} flags;
static void* starts(void* p) {
  flags.started = 1;
  return p;
}
static void* hurries(void* p) {
  flags.urgent = 1;
  return p;
}
int main() {
  pthread_t a, b;
  pthread_create(&a, 0, starts, 0);
  pthread_create(&b, 0, hurries, 0);
  pthread_join(a, 0);
  pthread_join(b, 0);
  assert(flags.started && flags.urgent);
}
