// SPDX-License-Identifier: MIT
// From reader to writer: what was seen as a reader need not hold any more for the writer.
#include <assert.h>
#include <pthread.h>
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static int made, times;
static void* makes_once(void* p) {
  pthread_rwlock_rdlock(&lock);
  int there = made;
  pthread_rwlock_unlock(&lock);
  if (there) return p;
  pthread_rwlock_wrlock(&lock);
#ifdef MENDED
  if (!made)
#endif
    times++;
  made = 1;
  pthread_rwlock_unlock(&lock);
  return p;
}
int main() {
  pthread_t t[3];
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, makes_once, 0);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
  assert(times == 1);
}
