// SPDX-License-Identifier: MIT
// What the cases of micro.c share: errors, times, memory, threads, and two ways to measure.
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long size;         // threads, in most cases
static const char* word;  // the argument after the case

static _Noreturn void fail(const char* what, int error) {
  fprintf(stderr, "micro: %s%s%s\n", what, error ? ": " : "", error ? strerror(error) : "");
  exit(1);
}
#define CHECK(call) \
  do { \
    int error_ = (call); \
    if (error_) fail(#call, error_ < 0 ? errno : error_); \
  } while (0)

// Ends the program because the platform cannot do what is measured, which is no failure. Many threads may find that out at once.
static _Noreturn void cannot(long threads, const char* why) {
  static atomic_flag said = ATOMIC_FLAG_INIT;
  if (atomic_flag_test_and_set(&said))
    for (;;) pause();
  if (threads) printf("cannot (%ld k)\n", threads / 1000);
  else printf("cannot (memory)\n");
  fflush(stdout);
  fprintf(stderr, "micro: no more than %ld threads: %s\n", threads, why);
  _exit(3);
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static double seconds_since(uint64_t start) { return (now_ns() - start) / 1e9; }
static void sleep_ms(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&t, &t)) {
  }
}

// Returns the number after `name` at the start of a line, or at the start of the file if `name` is empty.
static long number_in(const char* path, const char* name) {
  FILE* f = fopen(path, "r");
  char line[256];
  long found = -1;
  while (f && found < 0 && fgets(line, sizeof line, f))
    if (!strncmp(line, name, strlen(name))) found = atol(line + strlen(name));
  if (f) fclose(f);
  return found;
}

struct memory {
  long own, kernel, available;  // kB
};
static struct memory memory_now(void) {
  struct memory m;
  m.own = number_in("/proc/self/status", "VmRSS:") + number_in("/proc/self/status", "VmPTE:");
  m.kernel = number_in("/proc/meminfo", "KernelStack:") + number_in("/proc/meminfo", "SUnreclaim:");
  m.available = number_in("/proc/meminfo", "MemAvailable:");
  return m;
}
// Other programs may give back more memory than this one takes. That does not count for it.
static long kernel_growth(struct memory before, struct memory after) {
  return after.kernel > before.kernel ? after.kernel - before.kernel : 0;
}

// Returns how many kernel threads a process gets. Some are left to other programs, which could not start during the measurement
// otherwise.
static long kernel_threads_room(void) {
  static long room;
  if (room) return room;
  room = number_in("/proc/sys/vm/max_map_count", "") / 2;  // a stack and its guard are two mappings
  const char* limits[] = {"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"};
  for (int i = 0; i < 2; i++) {
    long limit = number_in(limits[i], "");
    if (limit > 0 && limit < room) room = limit;
  }
  return room;
}
enum { kLeftToOthers = 2000 };

static void create(pthread_t* t, const pthread_attr_t* attributes, void* (*body)(void*), void* argument, long alive) {
  int error = pthread_create(t, attributes, body, argument);
  if (error == EAGAIN || error == ENOMEM) cannot(alive, strerror(error));
  if (error) fail("pthread_create", error);
}

static void create_all(pthread_t* t, long n, const pthread_attr_t* attributes, void* (*body)(void*)) {
  for (long i = 0; i < n; i++) create(&t[i], attributes, body, NULL, i);
}
static void join_all(pthread_t* t, long n) {
  for (long i = 0; i < n; i++) CHECK(pthread_join(t[i], NULL));
}
// Whether each thread is a kernel thread: makes more threads than a scheduler would use, and asks the kernel whether it sees them all.
static sem_t probe_end;
static void* probe_body(void* p) {
  while (sem_wait(&probe_end)) {
  }
  return p;
}
static int kernel_threads(void) {
  long n = 64 + 4 * sysconf(_SC_NPROCESSORS_ONLN);
  pthread_t t[n];
  sem_init(&probe_end, 0, 0);
  create_all(t, n, NULL, probe_body);
  int all = number_in("/proc/self/status", "Threads:") > n;
  for (long i = 0; i < n; i++) sem_post(&probe_end);
  join_all(t, n);
  return all;
}

// Returns room for the handles of n threads that are alive together.
static pthread_t* room_for(long n) {
  if (n > 10000 && n > kernel_threads_room() - kLeftToOthers && kernel_threads())
    cannot(kernel_threads_room(), "each is a kernel thread; see pid_max, threads-max and max_map_count");
  if (number_in("/proc/meminfo", "MemAvailable:") < n * 14) cannot(0, "not even 14 kB are free for each");
  pthread_t* t = malloc(n * sizeof *t);
  if (!t) fail("malloc", errno);
  memset(t, 1, n * sizeof *t);  // so that these pages do not count as the threads'
  return t;
}

// Calls batch(n) until 0.3 s are over, after one call to warm up, and prints the mean of an operation.
static void measure(void (*batch)(long), long n) {
  batch(n);
  uint64_t start = now_ns(), end, done = 0;
  do {
    batch(n);
    done += n;
    end = now_ns();
  } while (end - start < 300000000);
  printf("ns=%.2f\n", (double)(end - start) / done);
}

// Runs body in `size` threads until `stop`. Each adds its count of operations to `sum`. Prints the time over the sum.
static atomic_int stop;
static _Atomic uint64_t sum;
static void measure_crowd(void* (*body)(void*)) {
  pthread_t* t = room_for(size);
  uint64_t start = now_ns();
  create_all(t, size, NULL, body);
  sleep_ms(400);
  stop = 1;
  join_all(t, size);
  printf("ns=%.2f\n", (double)(now_ns() - start) / sum);
}

static void* nothing(void* p) { return p; }
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

// Compares two times, for qsort().
static int earlier(const void* a, const void* b) {
  uint64_t x = *(const uint64_t*)a, y = *(const uint64_t*)b;
  return x < y ? -1 : x > y;
}
