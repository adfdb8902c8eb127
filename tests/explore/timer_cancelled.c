// SPDX-License-Identifier: MIT
// A timer is cancelled while its callback runs. The canceller does not wait for that, and frees what the callback uses.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;
static int is_set = 1, is_running, freed;
static void callback() {
  pthread_mutex_lock(&lock);
  assert(!freed);
  pthread_mutex_unlock(&lock);
}
static void* timer(void* p) {
  pthread_mutex_lock(&lock);
  is_running = is_set;
  pthread_mutex_unlock(&lock);
  if (is_running) callback();
  pthread_mutex_lock(&lock);
  is_running = 0;
  pthread_cond_signal(&idle);
  pthread_mutex_unlock(&lock);
  return p;
}
static void cancel_timer() {
  pthread_mutex_lock(&lock);
  is_set = 0;
#ifdef MENDED
  while (is_running) pthread_cond_wait(&idle, &lock);
#endif
  pthread_mutex_unlock(&lock);
}
int main() {
  pthread_t t;
  pthread_create(&t, 0, timer, 0);
  cancel_timer();
  pthread_mutex_lock(&lock);
  freed = 1;
  pthread_mutex_unlock(&lock);
  pthread_join(t, 0);
}
