// SPDX-License-Identifier: MIT
// Order: a thread uses what its maker sets only after it has made the thread. As in Mozilla's and pbzip2's bugs of this kind.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int* queue;
static void* uses(void* p) {
  pthread_mutex_lock(&lock);
  assert(queue);
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  static int memory;
  pthread_t t;
#ifdef MENDED
  queue = &memory;
#endif
  pthread_create(&t, 0, uses, 0);
  pthread_mutex_lock(&lock);
  queue = &memory;
  pthread_mutex_unlock(&lock);
  pthread_join(t, 0);
}
