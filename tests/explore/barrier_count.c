// SPDX-License-Identifier: MIT
// A hand-made barrier that cannot be used twice: a fast thread enters the second round before a slow one has left the first.
#include <pthread.h>
enum { kN = 3 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t right;
static int waiting;
static void meet() {
  pthread_mutex_lock(&lock);
  if (++waiting == kN) {
    waiting = 0;
    pthread_cond_broadcast(&all);
  } else {
    while (waiting) pthread_cond_wait(&all, &lock);
  }
  pthread_mutex_unlock(&lock);
}
static void* rounds(void* p) {
  for (int i = 0; i < 2; i++) {
#ifdef MENDED
    pthread_barrier_wait(&right);
    (void)meet;
#else
    meet();
#endif
  }
  return p;
}
int main() {
  pthread_t t[kN];
  pthread_barrier_init(&right, 0, kN);
  for (int i = 0; i < kN; i++) pthread_create(&t[i], 0, rounds, 0);
  for (int i = 0; i < kN; i++) pthread_join(t[i], 0);
}
