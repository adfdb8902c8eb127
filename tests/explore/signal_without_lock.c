// SPDX-License-Identifier: MIT
// A lost signal: the flag is set and signalled without the lock, so both may come between the waiter's look at the flag and its wait.
#include <pthread.h>
#include <stdatomic.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stopped = PTHREAD_COND_INITIALIZER;
static atomic_int stop;
static void* waits(void* p) {
  pthread_mutex_lock(&lock);
  while (!stop) pthread_cond_wait(&stopped, &lock);
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t;
  pthread_create(&t, 0, waits, 0);
#ifdef MENDED
  pthread_mutex_lock(&lock);
#endif
  stop = 1;
  pthread_cond_signal(&stopped);
#ifdef MENDED
  pthread_mutex_unlock(&lock);
#endif
  pthread_join(t, 0);
}
