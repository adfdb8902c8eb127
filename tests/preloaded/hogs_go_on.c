// SPDX-License-Identifier: MIT
// Threads that only compute come to their end beside threads that always have something to do with each other, and so never compute for long.
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { kPairs = 20, kHogs = 3 };
static const long kWork = 100 * 1000 * 1000;  // some hundred milliseconds: many ticks of preemption
static struct pair {
  sem_t to[2];
} pairs[kPairs];
static atomic_int stop;

static void* partner(void* p) {
  long i = (long)p;
  struct pair* mine = &pairs[i / 2];
  for (;;) {
    while (sem_wait(&mine->to[i % 2])) {
    }
    int last = stop;
    sem_post(&mine->to[1 - i % 2]);
    if (last) return NULL;
  }
}
static void* hog(void* p) {
  volatile long n = 0;
  while (n < kWork) n++;
  return p;
}

int main(void) {
  pthread_t t[2 * kPairs], h[kHogs];
  for (long i = 0; i < kPairs; i++) {
    sem_init(&pairs[i].to[0], 0, 1);
    sem_init(&pairs[i].to[1], 0, 0);
  }
  for (long i = 0; i < 2 * kPairs; i++)
    if (pthread_create(&t[i], NULL, partner, (void*)i)) abort();
  for (int i = 0; i < kHogs; i++)
    if (pthread_create(&h[i], NULL, hog, NULL)) abort();
  for (int i = 0; i < kHogs; i++) pthread_join(h[i], NULL);
  puts("the hogs have ended");
  stop = 1;
  for (int i = 0; i < 2 * kPairs; i++) pthread_join(t[i], NULL);
  puts("and so have the others");
  return 0;
}
