// SPDX-License-Identifier: MIT
// A watchdog that strikes though the work is done: its time was up in the same moment, and it does not look again before it acts.
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int done, given_up;
static void* watches(void* p) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 200000000;
  if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
  pthread_mutex_lock(&lock);
  int error = 0;
  while (!done && error != ETIMEDOUT) error = pthread_cond_timedwait(&changed, &lock, &until);
#ifdef MENDED
  if (!done)
#endif
    if (error == ETIMEDOUT) given_up = 1;
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t;
  pthread_create(&t, 0, watches, 0);
  usleep(50000);  // the work
  pthread_mutex_lock(&lock);
  if (!given_up) done = 1;
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&lock);
  pthread_join(t, 0);
  assert(!(done && given_up));
}
