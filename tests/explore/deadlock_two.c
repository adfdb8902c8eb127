// SPDX-License-Identifier: MIT
// Deadlock of two: two locks in two orders.
#include <pthread.h>
static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER;
static void* takes_b_and_a(void* p) {
#ifdef MENDED
  pthread_mutex_lock(&a);
  pthread_mutex_lock(&b);
#else
  pthread_mutex_lock(&b);
  pthread_mutex_lock(&a);
#endif
  pthread_mutex_unlock(&a);
  pthread_mutex_unlock(&b);
  return p;
}
int main() {
  pthread_t t;
  pthread_create(&t, 0, takes_b_and_a, 0);
  pthread_mutex_lock(&a);
  pthread_mutex_lock(&b);
  pthread_mutex_unlock(&b);
  pthread_mutex_unlock(&a);
  pthread_join(t, 0);
}
