// SPDX-License-Identifier: MIT
// Deadlock: each thread takes two permits of a semaphore, one after the other. If each has one, none gets its second.
#include <pthread.h>
#include <semaphore.h>
static sem_t permits;
static pthread_mutex_t both = PTHREAD_MUTEX_INITIALIZER;
static void* copies(void* p) {
#ifdef MENDED
  pthread_mutex_lock(&both);
#endif
  sem_wait(&permits);
  sem_wait(&permits);
#ifdef MENDED
  pthread_mutex_unlock(&both);
#endif
  sem_post(&permits);
  sem_post(&permits);
  return p;
}
int main() {
  pthread_t t[3];
  sem_init(&permits, 0, 3);
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, copies, 0);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
}
