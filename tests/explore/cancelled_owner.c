// SPDX-License-Identifier: MIT
// Cancellation: a thread is cancelled at a cancellation point while it owns a mutex, and nobody unlocks that.
#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void unlock(void* p) { pthread_mutex_unlock(p); }
static void* works(void* p) {
  pthread_mutex_lock(&lock);
#ifdef MENDED
  pthread_cleanup_push(unlock, &lock);
  pthread_testcancel();
  pthread_cleanup_pop(1);
#else
  pthread_testcancel();
  unlock(&lock);
#endif
  return p;
}
int main() {
  pthread_t t;
  pthread_create(&t, 0, works, 0);
  pthread_cancel(t);
  pthread_mutex_lock(&lock);
  pthread_mutex_unlock(&lock);
  pthread_join(t, 0);
}
