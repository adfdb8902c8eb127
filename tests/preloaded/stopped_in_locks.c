// SPDX-License-Identifier: MIT
// Threads that do nothing but lock and unlock take turns as often as threads that compute, though most ticks find them in the library's code.
// expect: preloaded only
// workers: 1
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { kThreads = 8 };               // more than the library makes slots for, if it takes them for threads that wait in a loop
static const double kWarmUp = 0.15;  // seconds of CPU time, after which all are known as threads that run for long
static const double kMeasured = 0.5;
static atomic_int stop, last, turns;
static int with_locks;
static pthread_mutex_t mutexes[kThreads];

static double cpu_time(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static void* work(void* p) {
  int me = (int)(intptr_t)p;
  uint32_t x = 1, y = 2, z = 3, u = 4;
  while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
    if (with_locks) pthread_mutex_lock(&mutexes[me]);
    x = x * 1664525 + y;
    y = (y << 5 | y >> 27) ^ z;
    z = z * 22695477 + u;
    u += x >> 3;
    if (with_locks) pthread_mutex_unlock(&mutexes[me]);
    if (atomic_load_explicit(&last, memory_order_relaxed) == me) continue;
    last = me;
    turns++;
  }
  return (void*)(uintptr_t)(x ^ y ^ z ^ u);
}

static void let_pass(double seconds) {
  for (double end = cpu_time() + seconds; cpu_time() < end;) nanosleep(&(struct timespec){0, 10000000}, NULL);
}

static int turns_of_threads(int locks) {
  pthread_t t[kThreads];
  with_locks = locks;
  stop = 0;
  for (intptr_t i = 0; i < kThreads; i++)
    if (pthread_create(&t[i], NULL, work, (void*)i)) return -1;
  let_pass(kWarmUp);
  int before = turns;
  let_pass(kMeasured);
  int n = turns - before;
  stop = 1;
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  return n;
}

int main(void) {
  int computing = turns_of_threads(0), locking = turns_of_threads(1);
  if (4 * locking < 3 * computing) printf("%d turns of threads that compute, %d of those that lock\n", computing, locking);
  else puts("they take turns");
  return 0;
}
