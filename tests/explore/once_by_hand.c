// SPDX-License-Identifier: MIT
// A hand-made "once": the flag is looked at and set in two steps.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int done, times;
static void init() { times++; }
static void by_hand() {
  pthread_mutex_lock(&lock);
  int is_done = done;
  pthread_mutex_unlock(&lock);
  if (is_done) return;
  pthread_mutex_lock(&lock);
  done = 1;
  init();
  pthread_mutex_unlock(&lock);
}
static void* uses(void* p) {
#ifdef MENDED
  pthread_once(&once, init);
  (void)by_hand;
#else
  by_hand();
  (void)once;
#endif
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, uses, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  assert(times == 1);
}
