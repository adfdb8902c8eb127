// SPDX-License-Identifier: MIT
// A semaphore that serves as a lock and begins with 2.
#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
static sem_t one;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static int inside;
static void* enters(void* p) {
  sem_wait(&one);
  assert(inside++ == 0);
  pthread_mutex_lock(&log_lock);
  pthread_mutex_unlock(&log_lock);
  inside--;
  sem_post(&one);
  return p;
}
int main() {
  pthread_t t[2];
#ifdef MENDED
  sem_init(&one, 0, 1);
#else
  sem_init(&one, 0, 2);
#endif
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, enters, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
