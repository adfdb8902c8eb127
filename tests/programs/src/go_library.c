// SPDX-License-Identifier: MIT
// Loads a library of Go's while there are threads. These and new threads then call it.
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static int (*work)(int);
static atomic_int go;

static void* waits(void* p) {
  while (!go) usleep(100);
  return (void*)(long)work((int)(long)p);
}
static void* at_once(void* p) { return (void*)(long)work((int)(long)p); }

int main(int argc, char** argv) {
  pthread_t t[16];
  void* r;
  long sum = 0;
  for (long i = 0; i < 8; i++) pthread_create(&t[i], NULL, waits, (void*)i);
  void* h = dlopen(argv[1], RTLD_NOW);
  if (!h) return puts(dlerror()), 1;
  work = (int (*)(int))dlsym(h, "Work");
  go = 1;
  printf("main: %d\n", work(100));
  for (long i = 8; i < 16; i++) pthread_create(&t[i], NULL, at_once, (void*)i);
  for (int i = 0; i < 16; i++) pthread_join(t[i], &r), sum += (long)r;
  printf("threads: %ld\n", sum);
  return 0;
}
