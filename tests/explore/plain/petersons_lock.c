// SPDX-License-Identifier: MIT
// Peterson's lock, with its two stores in the wrong order: both threads may enter.
#include <assert.h>
#include <pthread.h>
#include <sched.h>
static volatile int wants[2], turn, inside;
static void* enters(void* p) {
  int me = p != 0, other = !me;
#ifdef MENDED
  wants[me] = 1;
  turn = other;
#else
  turn = other;
  wants[me] = 1;
#endif
  while (wants[other] && turn == other) sched_yield();
  assert(!inside);
  inside = 1;
  inside = 0;
  wants[me] = 0;
  return 0;
}
int main() {
  pthread_t a, b;
  pthread_create(&a, 0, enters, 0);
  pthread_create(&b, 0, enters, &b);
  pthread_join(a, 0);
  pthread_join(b, 0);
}
