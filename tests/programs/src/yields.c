// SPDX-License-Identifier: MIT
// Four threads call sched_yield() until main has computed for a while, as idle threads of OpenBLAS and of OpenMP do.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

static atomic_int stop;
static void* yields(void* p) {
  while (!stop) sched_yield();
  return p;
}

int main(void) {
  pthread_t t[4];
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, yields, NULL);
  // More than two registers change, whatever compiler it is. Otherwise main might be taken for a thread that waits in a loop, and the others get
  // slots of their own.
  unsigned x = 1, y = 2, z = 3, u = 4;
  for (int i = 0; i < 500000000; i++) {
    x = x * 1664525 + y;
    y = (y << 5 | y >> 27) ^ z;
    z = z * 22695477 + u;
    u += x >> 3;
  }
  stop = 1;
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  printf("%u\n", x ^ y ^ z ^ u);
  return 0;
}
