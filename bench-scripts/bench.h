// What the small programs here share. Each prints one number: nanoseconds for one operation.
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(call)                                                        \
  do {                                                                     \
    int error_ = (call);                                                   \
    if (error_) {                                                          \
      fprintf(stderr, "%s: %s\n", #call, strerror(error_ < 0 ? errno : error_)); \
      exit(1);                                                             \
    }                                                                      \
  } while (0)

static inline uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static inline long argument(int argc, char** argv, long otherwise) { return argc > 1 ? atol(argv[1]) : otherwise; }

// Calls batch(n) until 0.3 s are over, after one call to warm up, and prints the mean.
static inline void measure(void (*batch)(long), long n) {
  batch(n);
  uint64_t start = now_ns(), end;
  uint64_t done = 0;
  do {
    batch(n);
    done += n;
    end = now_ns();
  } while (end - start < 300000000);
  printf("%.2f\n", (double)(end - start) / done);
}

// n threads run body, which counts what it did until `stop`; prints the time over the sum.
static atomic_int stop;
static _Atomic uint64_t sum;
static inline void measure_crowd(void* (*body)(void*), long n) {
  pthread_t* threads = calloc(n, sizeof *threads);
  uint64_t start = now_ns();
  for (long i = 0; i < n; i++) CHECK(pthread_create(&threads[i], NULL, body, NULL));
  struct timespec t = {0, 400000000};
  nanosleep(&t, NULL);
  stop = 1;
  for (long i = 0; i < n; i++) CHECK(pthread_join(threads[i], NULL));
  printf("%.2f\n", (double)(now_ns() - start) / sum);
}
