// SPDX-License-Identifier: MIT
// A queue is closed by one signal, while more than one consumer waits for it.
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int closed;
static void* consumes(void* p) {
  pthread_mutex_lock(&lock);
  while (!closed) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t[3];
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, consumes, 0);
  pthread_mutex_lock(&lock);
  closed = 1;
#ifdef MENDED
  pthread_cond_broadcast(&changed);
#else
  pthread_cond_signal(&changed);
#endif
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
}
