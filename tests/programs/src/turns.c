// SPDX-License-Identifier: MIT
// Eight threads take turns for some rounds, with memory of each kind, condition, mutex and sleep. For runs under tools.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int turn, sum;
static void* f(void* p) {
  long i = (long)p;
  char* buffer = malloc(1000);
  char local[500];
  memset(local, 1, sizeof local);
  for (int r = 0; r < 50; r++) {
    pthread_mutex_lock(&m);
    while (turn != i) pthread_cond_wait(&c, &m);
    turn = (turn + 1) % 8;
    sum += local[r];
    memset(buffer, r, 1000);
    pthread_cond_broadcast(&c);
    pthread_mutex_unlock(&m);
    if (r % 10 == 0) usleep(100);
  }
  free(buffer);
  return p;
}
int main() {
  for (int round = 0; round < 5; round++) {
    pthread_t t[8];
    for (long i = 0; i < 8; i++) pthread_create(&t[i], 0, f, (void*)i);
    for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
  }
  printf("sum %d\n", sum);
  return 0;
}
