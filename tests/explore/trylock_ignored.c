// SPDX-License-Identifier: MIT
// A trylock whose result nobody looks at.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t lock, other = PTHREAD_MUTEX_INITIALIZER;
static int inside;
static void* enters(void* p) {
#ifdef MENDED
  if (pthread_mutex_lock(&lock)) return p;
#else
  pthread_mutex_trylock(&lock);
#endif
  assert(inside++ == 0);
  pthread_mutex_lock(&other);
  pthread_mutex_unlock(&other);
  inside--;
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t[2];
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&lock, &a);
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, enters, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
