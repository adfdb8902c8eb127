// SPDX-License-Identifier: MIT
// Peterson's lock out of plain variables. It excludes nobody once a store waits in a store buffer.
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#ifdef MENDED
#define SHARED _Atomic
#else
#define SHARED
#endif
static SHARED int wants[2], turn;
static int inside;
static void* enters(void* p) {
  int me = p != 0;
  wants[me] = 1;  // RACE
  turn = !me;
  while (wants[!me] && turn == !me) sched_yield();  // RACE
  assert(++inside == 1);
  inside--;
  wants[me] = 0;
  return p;
}
int main() {
  pthread_t t[2];
  pthread_create(&t[0], 0, enters, 0);
  pthread_create(&t[1], 0, enters, &inside);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
