// SPDX-License-Identifier: MIT
// A flag that stops a loop looks benign. The compiler may read it once.
#include <pthread.h>
#include <sched.h>
#ifdef MENDED
static _Atomic int stop;
#else
static int stop;
#endif
static void* works(void* p) {
  while (!stop) sched_yield();  // RACE
  return p;
}
int main() {
  pthread_t t;
  pthread_create(&t, 0, works, 0);
  stop = 1;  // RACE
  pthread_join(t, 0);
}
