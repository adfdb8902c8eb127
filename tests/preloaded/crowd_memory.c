// SPDX-License-Identifier: MIT
// After a crowd of threads that allocated, libc gives the memory back to the kernel, and so do the threads' stacks.
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kThreads = 1000, kPieces = 60, kSize = 1000 };
static pthread_barrier_t all_have;

static void* allocate(void* p) {
  char* piece[kPieces];
  for (int i = 0; i < kPieces; i++) {
    piece[i] = malloc(kSize);
    memset(piece[i], 1, kSize);
  }
  pthread_barrier_wait(&all_have);
  for (int i = 0; i < kPieces; i++) free(piece[i]);
  return p;
}

static long resident_kb(void) {
  char line[256];
  long kb = 0;
  FILE* f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f)) sscanf(line, "VmRSS: %ld", &kb);
  if (f) fclose(f);
  return kb;
}

int main(void) {
  static pthread_t t[kThreads];
  // Twice, because what the first crowd leaves must not keep the second from going back.
  for (int crowd = 0; crowd < 2; crowd++) {
    pthread_barrier_init(&all_have, 0, kThreads);
    for (int i = 0; i < kThreads; i++) assert(pthread_create(&t[i], 0, allocate, 0) == 0);
    for (int i = 0; i < kThreads; i++) assert(pthread_join(t[i], 0) == 0);
    // 60 MB were in use. The bound in time only finds memory that never goes back.
    long kb = 0;
    for (int i = 0; i < 600 && (kb = resident_kb()) > 20000; i++) usleep(100000);
    if (kb > 20000) {
      printf("%ld kB stay\n", kb);
      return 1;
    }
  }
  return 0;
}
