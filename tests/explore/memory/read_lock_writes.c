// SPDX-License-Identifier: MIT
// A write under the lock of readers.
#include <pthread.h>
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static int hits;
static void* looks_up(void* p) {
#ifdef MENDED
  pthread_rwlock_wrlock(&lock);
#else
  pthread_rwlock_rdlock(&lock);
#endif
  hits++;  // RACE
  pthread_rwlock_unlock(&lock);
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, looks_up, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
