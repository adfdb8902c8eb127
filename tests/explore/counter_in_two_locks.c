// SPDX-License-Identifier: MIT
// One variable under two different locks.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER, inner = PTHREAD_MUTEX_INITIALIZER;
static int counter;
static void* counts(void* p) {
#ifdef MENDED
  pthread_mutex_t* mine = &a;
  (void)b;
#else
  pthread_mutex_t* mine = p ? &a : &b;
#endif
  pthread_mutex_lock(mine);
  int n = counter;
  pthread_mutex_lock(&inner);
  pthread_mutex_unlock(&inner);
  counter = n + 1;
  pthread_mutex_unlock(mine);
  return p;
}
int main() {
  pthread_t t[2];
  for (long i = 0; i < 2; i++) pthread_create(&t[i], 0, counts, (void*)i);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  assert(counter == 2);
}
