// SPDX-License-Identifier: MIT
// A lost update: a counter without a lock.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int counter;
static void* adds(void* p) {
#ifdef MENDED
  pthread_mutex_lock(&lock);
#else
  (void)lock;
#endif
  counter++;  // RACE
#ifdef MENDED
  pthread_mutex_unlock(&lock);
#endif
  return p;
}
int main() {
  pthread_t t[3];
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, adds, 0);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
  assert(counter == 3);
}
