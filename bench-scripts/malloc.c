// SPDX-License-Identifier: MIT
// Many threads allocate and free, and yield to each other in between. Arguments: the number of threads, and of allocations in all.
// Prints the time, the memory at its peak, and what is left of it when the threads have ended.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { kKept = 32, kTurn = 64 };
static long each;
static pthread_barrier_t all_there, all_done;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}
// Returns a number of kB of /proc/self/status.
static long kb(const char* name) {
  char line[256];
  long n = 0;
  FILE* f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (!strncmp(line, name, strlen(name))) n = atol(line + strlen(name));
  if (f) fclose(f);
  return n;
}
static void* body(void* p) {
  char* kept[kKept] = {0};
  unsigned long seed = (unsigned long)(long)p * 2654435761u + 1;
  pthread_barrier_wait(&all_there);
  for (long i = 0; i < each; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    unsigned long r = seed >> 33;
    char** at = &kept[r % kKept];
    size_t size = (r >> 8) % 16 ? 16 + (r >> 12) % 240 : 256 + (r >> 12) % 4096;  // mostly small
    free(*at);
    if (!(*at = malloc(size))) {
      printf("cannot (no memory)\n");
      fflush(stdout);
      _exit(3);
    }
    memset(*at, 1, size < 64 ? size : 64);
    if (i % kTurn == 0) sched_yield();
  }
  pthread_barrier_wait(&all_done);  // so that all that is kept is kept at the same time
  for (int i = 0; i < kKept; i++) free(kept[i]);
  return 0;
}

int main(int argc, char** argv) {
  long n = argc > 1 ? atol(argv[1]) : 8, all = argc > 2 ? atol(argv[2]) : 8000000;
  pthread_t* t = malloc((size_t)n * sizeof *t);
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, 64 << 10);
  each = all / n;
  pthread_barrier_init(&all_there, 0, (unsigned)n + 1);
  pthread_barrier_init(&all_done, 0, (unsigned)n + 1);
  for (long i = 0; i < n; i++)
    if (pthread_create(&t[i], &a, body, (void*)i) != 0) {
      printf("cannot (%ld threads)\n", i);
      fflush(stdout);
      _exit(3);
    }
  pthread_barrier_wait(&all_there);
  double start = now();
  pthread_barrier_wait(&all_done);
  double took = now() - start;
  for (long i = 0; i < n; i++) pthread_join(t[i], 0);
  free(t);
  sleep(2);
  printf("s=%.4f peak_kb=%ld left_kb=%ld\n", took, kb("VmHWM:"), kb("VmRSS:"));
  return 0;
}
