// SPDX-License-Identifier: MIT
// What the parts of preempt_stress.cpp share: checks, random numbers, the end of a run, and a mutex.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#define CHECK(ok, ...) ((ok) ? (void)0 : failed(__FILE__, __LINE__, #ok __VA_OPT__(, ) __VA_ARGS__))
[[noreturn]] static void failed(const char* file, int line, const char* what, long a = 0, long b = 0) {
  char text[256];
  int n = snprintf(text, sizeof text, "%s:%d: %s (%ld, %ld)\n", file, line, what, a, b);
  if (write(2, text, n)) {
  }
  if (getenv("STRESS_ABORT")) abort();
  _exit(1);
}

static uint64_t now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

struct Random {
  uint64_t x;
  uint32_t operator()() {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x >> 16;
  }
};

static std::atomic<bool> enough;  // tells all threads to end
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static long under_mutex;  // twice the number of times that it was locked

static void lock_a_while(bool yields) {
  pthread_mutex_lock(&mutex);
  long before = under_mutex++;
  if (yields) sched_yield();
  for (int i = 0; i < 300; i++) asm volatile("" ::: "memory");
  CHECK(under_mutex == before + 1, under_mutex, before);
  under_mutex++;
  pthread_mutex_unlock(&mutex);
}
