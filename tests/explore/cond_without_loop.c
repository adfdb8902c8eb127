// SPDX-License-Identifier: MIT
// A condition that is not looked at again after the wait: another consumer may have come first.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static int items;
static void* takes_one(void* p) {
  pthread_mutex_lock(&lock);
#ifdef MENDED
  while (items == 0) pthread_cond_wait(&filled, &lock);
#else
  if (items == 0) pthread_cond_wait(&filled, &lock);
#endif
  items--;
  assert(items >= 0);
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, takes_one, 0);
  for (int i = 0; i < 2; i++) {
    pthread_mutex_lock(&lock);
    items++;
    pthread_cond_signal(&filled);
    pthread_mutex_unlock(&lock);
  }
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
