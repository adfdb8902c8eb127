// SPDX-License-Identifier: MIT
// Atomicity: the counter is incremented without a lock. Most compilers make one instruction of it, which reads and then writes.
#include <assert.h>
#include <pthread.h>
#ifdef MENDED
static _Atomic int counter;
#else
static int counter;
#endif
static void* counts(void* p) {
  for (int i = 0; i < 3; i++) counter++;
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, counts, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  assert(counter == 6);
}
