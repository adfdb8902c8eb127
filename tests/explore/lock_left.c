// SPDX-License-Identifier: MIT
// A path that returns without unlocking, taken only if two threads come at the same time.
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int busy;
static void* works(void* p) {
  pthread_mutex_lock(&lock);
  if (busy) {
#ifdef MENDED
    pthread_mutex_unlock(&lock);
#endif
    return p;
  }
  busy = 1;
  pthread_mutex_unlock(&lock);
  pthread_mutex_lock(&lock);
  busy = 0;
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, works, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  pthread_mutex_lock(&lock);
}
