// SPDX-License-Identifier: MIT
// A count of references that is decremented and then read: two owners may both see 0, and one of them reads it
// when the other may have freed it.
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
struct object {
  atomic_int references;
};
static atomic_int freed;
static void* drops(void* p) {
  struct object* o = p;
#ifdef MENDED
  int left = atomic_fetch_sub(&o->references, 1) - 1;
#else
  atomic_fetch_sub(&o->references, 1);
  int left = atomic_load(&o->references);  // RACE
#endif
  if (left == 0) {
    assert(atomic_fetch_add(&freed, 1) == 0);
    free(o);  // RACE
  }
  return 0;
}
int main() {
  struct object* o = malloc(sizeof *o);
  o->references = 2;
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, drops, o);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
