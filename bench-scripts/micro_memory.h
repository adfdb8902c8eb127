// SPDX-License-Identifier: MIT
// Cases of micro.c: the memory of blocked threads, and the same work by any number of threads.
#pragma once
#include "micro.h"

// ---- memory ----

static sem_t all_blocked, end_blocked;
static atomic_long blocked_now;
static void* blocked_body(void* p) {
  if (++blocked_now == size) sem_post(&all_blocked);
  while (sem_wait(&end_blocked)) {
  }
  return p;
}
static void blocked_with(const pthread_attr_t* attributes) {
  pthread_t* t = room_for(size);
  sem_init(&all_blocked, 0, 0);
  sem_init(&end_blocked, 0, 0);
  struct memory before = memory_now();
  uint64_t start = now_ns();
  create_all(t, size, attributes, blocked_body);
  while (sem_wait(&all_blocked)) {
  }
  double s = seconds_since(start);
  struct memory full = memory_now();
  start = now_ns();
  for (long i = 0; i < size; i++) sem_post(&end_blocked);
  join_all(t, size);
  double end = seconds_since(start);
  sleep_ms(1000);  // a runtime may give memory back some time later
  struct memory after = memory_now();
  double own = full.own - before.own, kernel = kernel_growth(before, full);
  printf("s=%.4f kb=%.2f own_kb=%.2f available_kb=%.2f end_s=%.4f left_mb=%.1f\n", s, (own + kernel) / size, own / size,
         (double)(before.available - full.available) / size, end, (after.own - before.own) / 1024.0);
}
static void blocked(void) { blocked_with(NULL); }
static void blocked_256k(void) {
  pthread_attr_t attributes;
  CHECK(pthread_attr_init(&attributes));
  CHECK(pthread_attr_setstacksize(&attributes, 256 * 1024));
  blocked_with(&attributes);
}

// ---- the same work by any number of threads ----

// There are 200,000 pieces of some 4 µs. Each thread does half of its share, adds up under a lock, waits for all threads at a barrier, and
// does the other half.
enum { kPieces = 200000 };
static pthread_barrier_t half_time;
static uint64_t work_result, measuring_ns;
static atomic_long arrived;
static struct memory at_half_time;
static void work_pieces(long n) {
  for (long i = 0; i < n; i++) {
    uint64_t x = 88172645463325252u;
    for (int k = 0; k < 2000; k++) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
    }
    pthread_mutex_lock(&mutex);
    work_result += x;
    pthread_mutex_unlock(&mutex);
  }
}
static void* work_body(void* p) {
  work_pieces(kPieces / 2 / size);
  if (++arrived == size) {  // all threads are alive, and the memory is at its peak
    uint64_t start = now_ns();
    at_half_time = memory_now();
    measuring_ns = now_ns() - start;
  }
  pthread_barrier_wait(&half_time);
  work_pieces(kPieces / 2 / size);
  return p;
}
static void work(void) {
  if (kPieces / 2 % size) fail("work: the size must divide 100,000", 0);
  pthread_t first_thread;
  struct memory before = memory_now();
  uint64_t start = now_ns();
  create(&first_thread, NULL, nothing, NULL, 0);  // so that a runtime has done what it does once
  CHECK(pthread_join(first_thread, NULL));
  double first = (now_ns() - start) / 1000.0;
  pthread_t* t = room_for(size);
  CHECK(pthread_barrier_init(&half_time, NULL, size));
  start = now_ns();
  create_all(t, size, NULL, work_body);
  join_all(t, size);
  double s = seconds_since(start) - measuring_ns / 1e9;
  printf("s=%.4f first_us=%.1f mb=%.2f own_mb=%.2f result=%.0f\n", s, first,
         (at_half_time.own + kernel_growth(before, at_half_time)) / 1024.0, at_half_time.own / 1024.0, (double)(work_result & 0xffffffff));
}
