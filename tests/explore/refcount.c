// SPDX-License-Identifier: MIT
// A count of references that is taken down under the lock, and looked at after it: two threads may find the last one gone.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int references = 2, freed;
static void* releases(void* p) {
  pthread_mutex_lock(&lock);
  int left = --references;
  pthread_mutex_unlock(&lock);
#ifndef MENDED
  pthread_mutex_lock(&lock);
  left = references;
  pthread_mutex_unlock(&lock);
#endif
  if (left == 0) {
    pthread_mutex_lock(&lock);
    freed++;
    pthread_mutex_unlock(&lock);
  }
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, releases, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  assert(freed == 1);
}
