// SPDX-License-Identifier: MIT
// At exit: main returns, and an exit handler takes down what a detached thread still uses.
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t over = PTHREAD_COND_INITIALIZER;
static int alive = 1, is_over;
static void take_down() {
  pthread_mutex_lock(&lock);
  alive = 0;
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < 3; i++) {  // other handlers
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
  }
}
static void* works(void* p) {
  pthread_mutex_lock(&lock);
  assert(alive);
  is_over = 1;
  pthread_cond_signal(&over);
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t;
  atexit(take_down);
  pthread_create(&t, 0, works, 0);
  pthread_detach(t);
#ifdef MENDED
  pthread_mutex_lock(&lock);
  while (!is_over) pthread_cond_wait(&over, &lock);
  pthread_mutex_unlock(&lock);
#endif
  return 0;
}
