// SPDX-License-Identifier: MIT
// Threads wait for ever and hold memory only by their stacks and TLS, which is no leak. With an argument, the program leaks 33 bytes.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int ready;
static __thread char* kept;
static void* f(void* p) {
  char* volatile mine = malloc(77);
  kept = malloc(55);
  pthread_mutex_lock(&m);
  ready++;
  for (;;) pthread_cond_wait(&c, &m);
  mine[0] = 1;
  return p;
}
int main(int argc, char** argv) {
  pthread_t t;
  for (int i = 0; i < 3; i++) pthread_create(&t, 0, f, 0);
  for (int all = 0; !all; usleep(1000)) {
    pthread_mutex_lock(&m);
    all = ready == 3;
    pthread_mutex_unlock(&m);
  }
  if (argc > 1) {
    char* volatile p = malloc(33);
    p = 0;
  }
  puts("ok");
  return 0;
}
