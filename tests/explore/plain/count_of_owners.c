// SPDX-License-Identifier: MIT
// The last owner frees the object. The count is decremented without a lock, so two may be the last, or none.
#include <assert.h>
#include <pthread.h>
#ifdef MENDED
static _Atomic int owners = 2;
#else
static int owners = 2;
#endif
static volatile int freed;
static void* leaves(void* p) {
  if (--owners == 0) freed = freed + 1;
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, leaves, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  assert(freed == 1);
}
