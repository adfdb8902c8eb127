// SPDX-License-Identifier: MIT
// One condition variable for the full and for the empty buffer, and a signal where a broadcast is needed: it may wake the wrong side.
#include <pthread.h>
enum { kItems = 4 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int full;
static void tell() {
#ifdef MENDED
  pthread_cond_broadcast(&changed);
#else
  pthread_cond_signal(&changed);
#endif
}
static void* puts_in(void* p) {
  for (int i = 0; i < kItems; i++) {
    pthread_mutex_lock(&lock);
    while (full) pthread_cond_wait(&changed, &lock);
    full = 1;
    tell();
    pthread_mutex_unlock(&lock);
  }
  return p;
}
static void* takes_out(void* p) {
  for (int i = 0; i < kItems; i++) {
    pthread_mutex_lock(&lock);
    while (!full) pthread_cond_wait(&changed, &lock);
    full = 0;
    tell();
    pthread_mutex_unlock(&lock);
  }
  return p;
}
int main() {
  pthread_t t[4];
  for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, i < 2 ? puts_in : takes_out, 0);
  for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
}
