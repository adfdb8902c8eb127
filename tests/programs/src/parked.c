// SPDX-License-Identifier: MIT
// Waits for ever. All threads are parked, main in pthread_join.
#include <pthread.h>
#include <stdio.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static void* park(void* p) {
  pthread_mutex_lock(&m);
  for (;;) pthread_cond_wait(&c, &m);
  return p;
}
int main() {
  pthread_t t[50];
  for (int i = 0; i < 50; i++) pthread_create(&t[i], 0, park, 0);
  puts("waiting");
  fflush(stdout);
  pthread_join(t[0], 0);
  return 0;
}
