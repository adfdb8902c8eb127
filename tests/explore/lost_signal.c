// SPDX-License-Identifier: MIT
// A lost signal: who comes late waits for a signal that was sent before.
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ready = PTHREAD_COND_INITIALIZER;
static int is_ready;
static void* prepares(void* p) {
  pthread_mutex_lock(&lock);
  is_ready = 1;
  pthread_cond_signal(&ready);
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t;
  pthread_create(&t, 0, prepares, 0);
  pthread_mutex_lock(&lock);
#ifdef MENDED
  while (!is_ready)
#endif
    pthread_cond_wait(&ready, &lock);
  pthread_mutex_unlock(&lock);
  pthread_join(t, 0);
  return !is_ready;
}
