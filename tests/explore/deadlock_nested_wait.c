// SPDX-License-Identifier: MIT
// Deadlock by a condition variable: the wait releases the inner lock only, and the thread that would wake the waiter needs the outer one.
#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t outer = PTHREAD_MUTEX_INITIALIZER, inner = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static int items;
static void* puts_in(void* p) {
  pthread_mutex_lock(&outer);
  pthread_mutex_lock(&inner);
  items++;
  pthread_cond_signal(&filled);
  pthread_mutex_unlock(&inner);
  pthread_mutex_unlock(&outer);
  return p;
}
int main() {
  pthread_t t;
  pthread_create(&t, 0, puts_in, 0);
  usleep(50000);
  pthread_mutex_lock(&outer);
#ifdef MENDED
  pthread_mutex_unlock(&outer);
#endif
  pthread_mutex_lock(&inner);
  while (!items) pthread_cond_wait(&filled, &inner);
  items--;
  pthread_mutex_unlock(&inner);
#ifndef MENDED
  pthread_mutex_unlock(&outer);
#endif
  pthread_join(t, 0);
}
