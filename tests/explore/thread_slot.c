// SPDX-License-Identifier: MIT
// Initialization once for each thread: a thread looks for a free slot under the lock, but marks it only after it has prepared it.
#include <assert.h>
#include <pthread.h>
enum { kN = 3 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int in_use[kN], owners[kN];
static __thread int mine = -1;
static void register_thread() {
  if (mine >= 0) return;
  pthread_mutex_lock(&lock);
  for (mine = 0; in_use[mine];) mine++;
#ifndef MENDED
  pthread_mutex_unlock(&lock);
  pthread_mutex_lock(&lock);
#endif
  in_use[mine] = 1;
  pthread_mutex_unlock(&lock);
}
static void* uses(void* p) {
  register_thread();
  register_thread();
  assert(owners[mine]++ == 0);
  return p;
}
int main() {
  pthread_t t[kN];
  for (int i = 0; i < kN; i++) pthread_create(&t[i], 0, uses, 0);
  for (int i = 0; i < kN; i++) pthread_join(t[i], 0);
}
