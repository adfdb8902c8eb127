// SPDX-License-Identifier: MIT
// A bug that needs three things in an order among four threads.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int stage;
static void* advances(void* p) {
  long from = (long)p;
  for (int i = 0; i < 2; i++) {
    pthread_mutex_lock(&lock);
    if (stage == from) stage++;
#ifdef MENDED
    if (stage == 3) stage = 0;
#endif
    pthread_mutex_unlock(&lock);
  }
  return 0;
}
static void* resets(void* p) {
  for (int i = 0; i < 4; i++) {
    pthread_mutex_lock(&lock);
    assert(stage != 3);
    if (i % 2) stage = 0;
    pthread_mutex_unlock(&lock);
  }
  return p;
}
int main() {
  pthread_t t[4];
  pthread_create(&t[0], 0, resets, 0);
  for (long i = 2; i >= 0; i--) pthread_create(&t[3 - i], 0, advances, (void*)i);
  for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
}
