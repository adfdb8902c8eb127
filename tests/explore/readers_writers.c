// SPDX-License-Identifier: MIT
// Readers and writers by hand: the writer looks whether there are readers, but keeps none out while it writes. A reader sees one account
// written and the other not yet.
#include <assert.h>
#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int readers, writing, a = 50, b = 50;
static void log_line() { write(1, "", 0); }
static void* reads(void* p) {
  pthread_mutex_lock(&lock);
  while (writing) pthread_cond_wait(&changed, &lock);
  readers++;
  pthread_mutex_unlock(&lock);
  int first = a;
  log_line();
  assert(first + b == 100);
  pthread_mutex_lock(&lock);
  readers--;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return p;
}
static void* writes(void* p) {
  pthread_mutex_lock(&lock);
  while (readers || writing) pthread_cond_wait(&changed, &lock);
#ifdef MENDED
  writing = 1;
#endif
  pthread_mutex_unlock(&lock);
  a -= 10;
  log_line();
  b += 10;
  pthread_mutex_lock(&lock);
  writing = 0;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t[3];
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, i == 1 ? writes : reads, 0);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
}
