// SPDX-License-Identifier: MIT
// A deadlock of two threads while a third one polls. The process as a whole goes on for ever.
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER;
static atomic_int left = 2;

static void* one(void* p) {
  pthread_mutex_lock(&a);
  pthread_mutex_lock(&b);
  pthread_mutex_unlock(&b);
  pthread_mutex_unlock(&a);
  left--;
  return p;
}

static void* other(void* p) {
#ifdef MENDED
  return one(p);
#endif
  pthread_mutex_lock(&b);
  pthread_mutex_lock(&a);
  pthread_mutex_unlock(&a);
  pthread_mutex_unlock(&b);
  left--;
  return p;
}

int main(void) {
  pthread_t t[2];
  pthread_create(&t[0], NULL, one, NULL);
  pthread_create(&t[1], NULL, other, NULL);
  while (left) usleep(1000);
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  return 0;
}
