// SPDX-License-Identifier: MIT
// Cancellation: a thread that is cancelled in pthread_cond_wait() owns the mutex again when its cleanup handlers run, and none unlocks it.
#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static int items, waiters;
static void leaves(void* p) {
  waiters--;
#ifdef MENDED
  pthread_mutex_unlock(&lock);
#endif
}
static void* puts_in(void* p) {
  pthread_mutex_lock(&lock);
  items++;
  pthread_cond_signal(&filled);
  pthread_mutex_unlock(&lock);
  return p;
}
static void* takes(void* p) {
  pthread_mutex_lock(&lock);
  while (items == 0) {
    waiters++;
    pthread_cleanup_push(leaves, 0);
    pthread_cond_wait(&filled, &lock);
    pthread_cleanup_pop(0);
    waiters--;
  }
  items--;
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t[2];
  pthread_create(&t[0], 0, puts_in, 0);
  pthread_create(&t[1], 0, takes, 0);
  usleep(50000);
  pthread_cancel(t[1]);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  pthread_mutex_lock(&lock);
  pthread_mutex_unlock(&lock);
}
