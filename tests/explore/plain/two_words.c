// SPDX-License-Identifier: MIT
// Two words that belong together are written one after the other, and read so.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile long low = 0, high = 100;
static void* moves(void* p) {
  for (long i = 1; i <= 3; i++) {
#ifdef MENDED
    pthread_mutex_lock(&lock);
#endif
    low = i * 10;
    high = low + 100;
#ifdef MENDED
    pthread_mutex_unlock(&lock);
#endif
  }
  return p;
}
static void* looks(void* p) {
#ifdef MENDED
  pthread_mutex_lock(&lock);
#endif
  long a = low, b = high;
#ifdef MENDED
  pthread_mutex_unlock(&lock);
#endif
  assert(b - a == 100);
  return p;
}
int main() {
  pthread_t a, b;
  pthread_create(&a, 0, moves, 0);
  pthread_create(&b, 0, looks, 0);
  pthread_join(a, 0);
  pthread_join(b, 0);
}
