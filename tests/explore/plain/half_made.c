// SPDX-License-Identifier: MIT
// Double-checked locking: the pointer is set before the object that it points to is complete.
#include <assert.h>
#include <pthread.h>
struct Config {
  volatile int size, limit;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct Config object;
static struct Config* volatile config;
static struct Config* get(void) {
  if (!config) {
    pthread_mutex_lock(&lock);
    if (!config) {
#ifndef MENDED
      config = &object;
#endif
      object.size = 10;
      object.limit = 20;
      config = &object;
    }
    pthread_mutex_unlock(&lock);
  }
  return config;
}
static void* uses(void* p) {
  struct Config* c = get();
  assert(c->size == 10 && c->limit == 20);
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, uses, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
