// SPDX-License-Identifier: MIT
// Order: the owner destroys a mutex that a thread still uses, since it waits for the thread's message and not for its end.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t* lock;
static pthread_mutex_t memory = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t over = PTHREAD_COND_INITIALIZER;
static int is_over;
static void* works(void* p) {
  pthread_mutex_lock(lock);
  is_over = 1;
  pthread_cond_signal(&over);
  pthread_mutex_unlock(lock);
  pthread_mutex_t* again = lock;  // a last line in the log
  assert(again);
  pthread_mutex_lock(again);
  pthread_mutex_unlock(again);
  return p;
}
int main() {
  pthread_t t;
  lock = &memory;
  pthread_create(&t, 0, works, 0);
  pthread_mutex_lock(lock);
  while (!is_over) pthread_cond_wait(&over, lock);
  pthread_mutex_unlock(lock);
#ifdef MENDED
  pthread_join(t, 0);
#endif
  lock = 0;
#ifndef MENDED
  pthread_join(t, 0);
#endif
}
