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
  volatile unsigned sum = 0;
  for (unsigned i = 0; i < 1000000000; i++) sum += i & 3;
  stop = 1;
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  printf("%u\n", sum);
  return 0;
}
