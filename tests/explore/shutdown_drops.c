// SPDX-License-Identifier: MIT
// Shutdown: the consumer looks at "closed" before it looks for items, and leaves the last ones in the queue.
#include <assert.h>
#include <pthread.h>
#include <unistd.h>
enum { kItems = 3 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int items, closed, consumed;
static void* consumes(void* p) {
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!items && !closed) pthread_cond_wait(&changed, &lock);
#ifdef MENDED
    if (closed && !items) break;
#else
    if (closed) break;
#endif
    items--;
    consumed++;
  }
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t;
  pthread_create(&t, 0, consumes, 0);
  for (int i = 0; i < kItems; i++) {
    pthread_mutex_lock(&lock);
    items++;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
  }
  usleep(50000);
  pthread_mutex_lock(&lock);
  closed = 1;
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&lock);
  pthread_join(t, 0);
  assert(consumed == kItems);
}
