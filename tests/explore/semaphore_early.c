// SPDX-License-Identifier: MIT
// A semaphore that is posted before what it stands for is there.
#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
static sem_t filled;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int items;
static void add() {
  pthread_mutex_lock(&lock);
  items++;
  pthread_mutex_unlock(&lock);
}
static void* makes(void* p) {
#ifdef MENDED
  add();
  sem_post(&filled);
#else
  sem_post(&filled);
  add();
#endif
  return p;
}
int main() {
  pthread_t t;
  sem_init(&filled, 0, 0);
  pthread_create(&t, 0, makes, 0);
  sem_wait(&filled);
  pthread_mutex_lock(&lock);
  assert(items == 1);
  pthread_mutex_unlock(&lock);
  pthread_join(t, 0);
}
