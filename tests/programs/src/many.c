// SPDX-License-Identifier: MIT
// Many threads are blocked at once on a condition. Then a chain of readers waits in the kernel. Argument: the number of threads.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_there = PTHREAD_COND_INITIALIZER, go = PTHREAD_COND_INITIALIZER;
static long there, left, sum, n;
static int open_gate;

static void* wait_at_gate(void* p) {
  pthread_mutex_lock(&m);
  if (++there == n) pthread_cond_signal(&all_there);
  while (!open_gate) pthread_cond_wait(&go, &m);
  sum += (long)p;
  left++;
  pthread_mutex_unlock(&m);
  return p;
}
static int pipes[65][2];
static void* pass_on(void* p) {
  int i = (int)(long)p;
  char c;
  assert(read(pipes[i][0], &c, 1) == 1);
  c++;
  assert(write(pipes[i + 1][1], &c, 1) == 1);
  return p;
}

int main(int argc, char** argv) {
  n = argc > 1 ? atol(argv[1]) : 1000;
  pthread_attr_t a;
  pthread_attr_init(&a);
  if (argc > 2) pthread_attr_setstacksize(&a, (size_t)atol(argv[2]));
  pthread_t* t = malloc((size_t)n * sizeof *t);
  for (long i = 0; i < n; i++) {
    int e = pthread_create(&t[i], &a, wait_at_gate, (void*)i);
    if (e) printf("%ld: %s\n", i, strerror(e)), exit(1);
  }
  pthread_mutex_lock(&m);
  while (there < n) pthread_cond_wait(&all_there, &m);
  open_gate = 1;
  pthread_cond_broadcast(&go);
  pthread_mutex_unlock(&m);
  for (long i = 0; i < n; i++) {
    void* r;
    assert(pthread_join(t[i], &r) == 0 && r == (void*)i);
  }
  printf("%ld %d\n", left, sum == n * (n - 1) / 2);

  for (int i = 0; i <= 64; i++) assert(pipe(pipes[i]) == 0);
  pthread_t chain[64];
  for (long i = 0; i < 64; i++) pthread_create(&chain[i], NULL, pass_on, (void*)i);
  char c = 1;
  assert(write(pipes[0][1], &c, 1) == 1 && read(pipes[64][0], &c, 1) == 1);
  for (int i = 0; i < 64; i++) pthread_join(chain[i], NULL);
  printf("%d\n", c);
  return 0;
}
