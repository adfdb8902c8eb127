// SPDX-License-Identifier: MIT
// Order: the flag says that the data are there, and is set before they are.
#include <assert.h>
#include <pthread.h>
static volatile int data, ready;
static void* publishes(void* p) {
#ifdef MENDED
  data = 42;
  ready = 1;
#else
  ready = 1;
  data = 42;
#endif
  return p;
}
static void* reads(void* p) {
  if (ready) assert(data == 42);
  return p;
}
int main() {
  pthread_t a, b;
  pthread_create(&a, 0, publishes, 0);
  pthread_create(&b, 0, reads, 0);
  pthread_join(a, 0);
  pthread_join(b, 0);
}
