// SPDX-License-Identifier: MIT
// A barrier where two are needed: a fast thread is in the next round, and writes what a slow one still has to read in this one.
#include <assert.h>
#include <pthread.h>
#include <unistd.h>
enum { kN = 3 };
static pthread_barrier_t barrier;
static int row[kN];
static void* rounds(void* p) {
  long me = (long)p;
  for (int i = 1; i <= 2; i++) {
    usleep(20000);  // computes
    row[me] = i;
    pthread_barrier_wait(&barrier);
    assert(row[(me + 1) % kN] == i);
#ifdef MENDED
    pthread_barrier_wait(&barrier);
#endif
  }
  return 0;
}
int main() {
  pthread_t t[kN];
  pthread_barrier_init(&barrier, 0, kN);
  for (long i = 0; i < kN; i++) pthread_create(&t[i], 0, rounds, (void*)i);
  for (int i = 0; i < kN; i++) pthread_join(t[i], 0);
}
