// SPDX-License-Identifier: MIT
// Double-checked locking: the first look at the pointer is ordered by nothing.
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
struct config {
  int size, limit;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct config* config;
#ifdef MENDED
#define LOOK() __atomic_load_n(&config, __ATOMIC_ACQUIRE)
#define PUT(c) __atomic_store_n(&config, c, __ATOMIC_RELEASE)
#else
#define LOOK() config
#define PUT(c) config = c
#endif
static void* uses(void* p) {
  struct config* c = LOOK();  // RACE
  if (!c) {
    pthread_mutex_lock(&lock);
    c = LOOK();
    if (!c) {
      c = malloc(sizeof *c);
      c->size = 10;
      c->limit = 20;
      PUT(c);  // RACE
    }
    pthread_mutex_unlock(&lock);
  }
  assert(c->size == 10 && c->limit == 20);
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, uses, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  free(config);
}
