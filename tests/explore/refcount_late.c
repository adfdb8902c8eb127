// SPDX-License-Identifier: MIT
// A reference that is counted too late: the object is found under the table's lock, and freed by its last owner before the finder counts itself.
#include <assert.h>
#include <pthread.h>
#include <stddef.h>
struct object {
  pthread_mutex_t lock;
  int references, freed;
};
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct object memory = {PTHREAD_MUTEX_INITIALIZER, 1, 0}, *table = &memory;
static void get(struct object* o) {
  pthread_mutex_lock(&o->lock);
  assert(!o->freed);
  o->references++;
  pthread_mutex_unlock(&o->lock);
}
static void put(struct object* o) {
  pthread_mutex_lock(&table_lock);
  pthread_mutex_lock(&o->lock);
  if (--o->references == 0) {
    table = NULL;
    o->freed = 1;
  }
  pthread_mutex_unlock(&o->lock);
  pthread_mutex_unlock(&table_lock);
}
static void* finds(void* p) {
  pthread_mutex_lock(&table_lock);
  struct object* o = table;
#ifdef MENDED
  if (o) get(o);
#endif
  pthread_mutex_unlock(&table_lock);
  if (!o) return p;
#ifndef MENDED
  get(o);
#endif
  put(o);
  return p;
}
int main() {
  pthread_t t;
  pthread_create(&t, 0, finds, 0);
  put(&memory);
  pthread_join(t, 0);
}
