// SPDX-License-Identifier: MIT
// Publication: a pointer is shown to others before the object has its contents.
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
struct config {
  pthread_mutex_t lock;
  int value;
};
static _Atomic(struct config*) shown;
static void* reads(void* p) {
  struct config* c = atomic_load(&shown);
  if (!c) return p;
  pthread_mutex_lock(&c->lock);
  assert(c->value == 7);
  pthread_mutex_unlock(&c->lock);
  return p;
}
int main() {
  pthread_t t[2];
  static struct config c = {PTHREAD_MUTEX_INITIALIZER, 0};
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, reads, 0);
#ifndef MENDED
  atomic_store(&shown, &c);
#endif
  pthread_mutex_lock(&c.lock);
  c.value = 7;
  pthread_mutex_unlock(&c.lock);
#ifdef MENDED
  atomic_store(&shown, &c);
#endif
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
