// SPDX-License-Identifier: MIT
// Deadlock by a join: main stops the thread under the lock that the thread may still need for its last report.
#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int stopping;
static void* works(void* p) {
  pthread_mutex_lock(&lock);
  int stops = stopping;
  pthread_mutex_unlock(&lock);
  if (stops) return p;
  pthread_mutex_lock(&lock);
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t;
  pthread_create(&t, 0, works, 0);
  usleep(50000);
  pthread_mutex_lock(&lock);
  stopping = 1;
#ifdef MENDED
  pthread_mutex_unlock(&lock);
  pthread_join(t, 0);
#else
  pthread_join(t, 0);
  pthread_mutex_unlock(&lock);
#endif
}
