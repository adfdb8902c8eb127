// SPDX-License-Identifier: MIT
// A thread pool that shrinks: a worker sees that there are too many, and leaves, but counts itself out only later. So too many leave, and
// nobody does the job.
#include <pthread.h>
enum { kWorkers = 3 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int workers = kWorkers, wanted = kWorkers, jobs, done;
static void* works(void* p) {
  pthread_mutex_lock(&lock);
  while (!done) {
    if (workers > wanted) {
#ifdef MENDED
      workers--;
      pthread_mutex_unlock(&lock);
#else
      pthread_mutex_unlock(&lock);  // frees what the worker has
      pthread_mutex_lock(&lock);
      workers--;
      pthread_mutex_unlock(&lock);
#endif
      return p;
    }
    if (jobs) {
      jobs--;
      done = 1;
      pthread_cond_broadcast(&changed);
    } else {
      pthread_cond_wait(&changed, &lock);
    }
  }
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t[kWorkers];
  for (int i = 0; i < kWorkers; i++) pthread_create(&t[i], 0, works, 0);
  pthread_mutex_lock(&lock);
  wanted = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  pthread_mutex_lock(&lock);
  jobs++;
  pthread_cond_broadcast(&changed);
  while (!done) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < kWorkers; i++) pthread_join(t[i], 0);
}
