// SPDX-License-Identifier: MIT
// expect: preloaded only
// Very many threads are blocked at once. The test checks what each costs in memory, page tables included, and that all memory comes back
// after their end. Some are made so slowly that workers which prepare memory for the next ones could get far ahead.
// `million [THREADS [STACK]]` prints what it measures. STACK is in bytes, 0 for the default. Without arguments there are 100,000 threads of
// each kind, and no figures.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t may_end = PTHREAD_COND_INITIALIZER, all_there = PTHREAD_COND_INITIALIZER;
static long there, ended, wanted;
static int ending;
static pthread_t* threads;
static int talk, slowly;

static void check(int ok, const char* what, long value) {
  if (ok) return;
  printf("wrong: %s (%ld)\n", what, value);
  exit(1);
}

static void* body(void* p) {
  pthread_mutex_lock(&mutex);
  if (++there == wanted) pthread_cond_signal(&all_there);
  while (!ending) pthread_cond_wait(&may_end, &mutex);
  ended++;
  pthread_mutex_unlock(&mutex);
  return p;
}

static long field(const char* file, const char* name) {
  FILE* f = fopen(file, "r");
  char line[256];
  long kb = 0;
  while (f && fgets(line, sizeof line, f))
    if (!strncmp(line, name, strlen(name))) kb = atol(line + strlen(name));
  if (f) fclose(f);
  return kb;
}
static long memory(void) { return field("/proc/self/status", "VmRSS:") + field("/proc/self/status", "VmPTE:"); }

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

// Returns the bytes that each thread costs while all are blocked.
static double burst(long n, size_t stack) {
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  if (stack) pthread_attr_setstacksize(&attr, stack);
  there = ended = ending = 0;
  wanted = n;
  long before = memory();
  double start = now();
  for (long i = 0; i < n; i++) {
    int e = pthread_create(&threads[i], &attr, body, (void*)i);
    check(e == 0, "no thread", e);
    for (double until = now() + 50e-6; slowly && now() < until;) {
    }
  }
  pthread_mutex_lock(&mutex);
  while (there < n) pthread_cond_wait(&all_there, &mutex);
  double blocked = now();
  long during = memory();
  ending = 1;
  pthread_cond_broadcast(&may_end);
  pthread_mutex_unlock(&mutex);
  for (long i = 0; i < n; i++) {
    void* result;
    check(pthread_join(threads[i], &result) == 0 && result == (void*)i, "join", i);
  }
  double end = now();
  check(ended == n, "ended", ended);
  pthread_attr_destroy(&attr);
  double each = (during - before) * 1024.0 / n;
  if (talk)
    printf("%ld threads: created and blocked in %.2f s, ended and joined in %.2f s, %.0f bytes each, memory %ld kB → %ld kB → %ld kB\n", n,
           blocked - start, end - blocked, each, before, during, memory());
  return each;
}

// The memory goes back while no thread waits for it. The limit only finds memory that never comes back. 12 MB are for what the library
// itself touches once, its queues, 0.5 MB for each slot; four times that where pages have 16 kB. There may be more slots meanwhile.
static void returns_to(long before) {
  long once = 3 * sysconf(_SC_PAGESIZE);
  double start = now();
  long kb;
  while ((kb = memory()) > before + before / 10 + once) {
    if (now() - start > 20) check(0, "memory does not come back, kB", kb - before);
    usleep(10000);
  }
  if (talk) printf("back at %ld kB after %.2f s (%ld kB before)\n", kb, now() - start, before);
}

static void kind(const char* name, long n, size_t stack, double limit) {
  if (sysconf(_SC_PAGESIZE) > 4096) limit *= 0.75 * (double)sysconf(_SC_PAGESIZE) / 4096;  // most of it is whole pages, but not the record
  long before = memory();
  double each = burst(n, stack);
  check(each <= limit, name, (long)each);
  returns_to(before);
  // The memory that came back can be used for more threads.
  each = burst(n / 2, stack);
  check(each <= limit, name, (long)each);
  returns_to(before);
  printf("%s\n", name);
}

int main(int argc, char** argv) {
  long n = argc > 1 ? atol(argv[1]) : 100000;
  talk = argc > 1;
  if (field("/proc/meminfo", "MemAvailable:") < 16 * n) {
    printf("too little memory\n");
    return argc > 1;
  }
  setvbuf(stdout, NULL, _IONBF, 0);
  threads = malloc(n * sizeof *threads);
  memset(threads, 1, n * sizeof *threads);
  burst(64, 0);
  if (argc > 2) {
    size_t stack = strtoul(argv[2], NULL, 0);
    kind("as asked", n, stack, stack && stack <= 256 << 10 ? 10240 : 13568);
    return 0;
  }
  kind("64 kB", n, 64 << 10, 10240);
  kind("256 kB", n, 256 << 10, 10240);
  // 8 MB, whatever the limit is here. Each such stack needs a page table of its own, and one in 32 another one for its guard.
  kind("8 MB", n, 8 << 20, 13568);
  slowly = 1;
  kind("slowly", n / 10, 1 << 20, 13312);
  return 0;
}
