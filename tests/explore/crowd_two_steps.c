// SPDX-License-Identifier: MIT
// Atomicity in a crowd: each of many workers announces itself and then enlists, by two locks. The one supervisor must come between the two
// steps of one worker, before any other has enlisted.
#include <assert.h>
#include <pthread.h>
#define WORKERS 60
static pthread_mutex_t announcing = PTHREAD_MUTEX_INITIALIZER, enlisting = PTHREAD_MUTEX_INITIALIZER;
static int announced, enlisted;
static void* works(void* p) {
  pthread_mutex_lock(&announcing);
  announced++;
#ifdef MENDED
  pthread_mutex_lock(&enlisting);
  enlisted++;
  pthread_mutex_unlock(&enlisting);
  pthread_mutex_unlock(&announcing);
#else
  pthread_mutex_unlock(&announcing);
  pthread_mutex_lock(&enlisting);
  enlisted++;
  pthread_mutex_unlock(&enlisting);
#endif
  return p;
}
static void* supervises(void* p) {
  pthread_mutex_lock(&announcing);
  int some = announced > 0;
  pthread_mutex_unlock(&announcing);
  pthread_mutex_lock(&enlisting);
  assert(!some || enlisted > 0);
  pthread_mutex_unlock(&enlisting);
  return p;
}
int main() {
  pthread_t t[WORKERS + 1];
  for (int i = 0; i < WORKERS; i++) pthread_create(&t[i], 0, works, 0);
  pthread_create(&t[WORKERS], 0, supervises, 0);
  for (int i = 0; i <= WORKERS; i++) pthread_join(t[i], 0);
}
