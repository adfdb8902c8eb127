// SPDX-License-Identifier: MIT
// A count of references that is decremented without an atomic operation.
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
struct object {
#ifdef MENDED
  atomic_int references;
#else
  int references;
#endif
};
static void* drops(void* p) {
  struct object* o = p;
  if (--o->references == 0) free(o);  // RACE
  return 0;
}
int main() {
  struct object* o = malloc(sizeof *o);
  o->references = 2;
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, drops, o);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
