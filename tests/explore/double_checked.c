// SPDX-License-Identifier: MIT
// Double-checked locking that shows the object before it is complete.
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, parts = PTHREAD_MUTEX_INITIALIZER;
static atomic_int there;
static int value;
static void fill() {
  pthread_mutex_lock(&parts);
  value = 42;
  pthread_mutex_unlock(&parts);
}
static void* uses(void* p) {
  if (!atomic_load(&there)) {
    pthread_mutex_lock(&lock);
    if (!atomic_load(&there)) {
#ifdef MENDED
      fill();
      atomic_store(&there, 1);
#else
      atomic_store(&there, 1);
      fill();
#endif
    }
    pthread_mutex_unlock(&lock);
  }
  pthread_mutex_lock(&parts);
  assert(value == 42);
  pthread_mutex_unlock(&parts);
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, uses, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
