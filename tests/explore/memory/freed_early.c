// SPDX-License-Identifier: MIT
// One thread frees what another one still reads. Only the lock of the reader was thought of.
#include <pthread.h>
#include <stdlib.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void* reads(void* p) {
  pthread_mutex_lock(&lock);
  int n = *(int*)p;  // RACE
  pthread_mutex_unlock(&lock);
  return n ? 0 : p;
}
int main() {
  int* n = malloc(sizeof *n);
  *n = 1;
  pthread_t t;
  pthread_create(&t, 0, reads, n);
#ifdef MENDED
  pthread_join(t, 0);
  free(n);
#else
  free(n);  // RACE
  pthread_join(t, 0);
#endif
}
