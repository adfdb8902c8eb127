// SPDX-License-Identifier: MIT
// A wait with a timeout whose result nobody looks at.
#include <assert.h>
#include <pthread.h>
#include <time.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ready = PTHREAD_COND_INITIALIZER;
static int is_ready;
static void* prepares(void* p) {
  struct timespec t = {0, 50000000};
  nanosleep(&t, 0);
  pthread_mutex_lock(&lock);
  is_ready = 1;
  pthread_cond_signal(&ready);
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t;
  struct timespec until;
  pthread_create(&t, 0, prepares, 0);
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 100000000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_mutex_lock(&lock);
#ifdef MENDED
  while (!is_ready) pthread_cond_wait(&ready, &lock);
#else
  if (!is_ready) pthread_cond_timedwait(&ready, &lock, &until);
#endif
  assert(is_ready);
  pthread_mutex_unlock(&lock);
  pthread_join(t, 0);
}
