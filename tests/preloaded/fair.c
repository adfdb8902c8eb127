// SPDX-License-Identifier: MIT
// Shares of the CPU: equal threads get equal shares. A setter runs among spinners, short threads beside a hog, and the oldest thread beside
// joiners. Each thread that takes what another one makes gets something.
// args: 1
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "nptl.h"

static double seconds_on(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static atomic_int stop;
struct counter {
  atomic_long n;
  char pad[120];
} counters[64];

static void* count(void* p) {
  struct counter* c = p;
  while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
    unsigned x = 1;
    for (int i = 0; i < 20000; i++) x = x * 1664525 + 1013904223;
    atomic_fetch_add_explicit(&c->n, x ? 1 : 2, memory_order_relaxed);
  }
  return NULL;
}

// Each thread gets between half and twice the mean on a machine with nothing else to do (run "fair 10" by hand). Beside other tests, the
// kernel's own shares differ by more.
static double most = 5;
static int unequal;
static void shares(int n, double time) {
  pthread_t t[64];
  atomic_store(&stop, 0);
  for (int i = 0; i < n; i++) {
    counters[i].n = 0;
    if (pthread_create(&t[i], NULL, count, &counters[i])) exit(1);
  }
  // `time` is CPU time, since beside other processes there may be few turns in a second. Unequal shares are watched for longer, up to ten
  // seconds. A thread that gets too little goes on getting too little. A thread that only came late does not.
  double share[64], begin = seconds_on(CLOCK_PROCESS_CPUTIME_ID), last = seconds_on(CLOCK_MONOTONIC) + 20 * time;
  int bad;
  for (double until = time;; until += time) {
    while (seconds_on(CLOCK_PROCESS_CPUTIME_ID) < begin + until && seconds_on(CLOCK_MONOTONIC) < last)
      nanosleep(&(struct timespec){0, 50000000}, NULL);
    long total = 0;
    for (int i = 0; i < n; i++) total += atomic_load(&counters[i].n);
    bad = !total;
    for (int i = 0; i < n; i++) {
      share[i] = (double)atomic_load(&counters[i].n) * n / total;
      bad += share[i] < 1 / most || share[i] > most;
    }
    if (!bad || until >= 10 || seconds_on(CLOCK_MONOTONIC) >= last) break;
  }
  atomic_store(&stop, 1);
  for (int i = 0; i < n; i++) {
    pthread_join(t[i], NULL);
    if (share[i] < 1 / most || share[i] > most) fprintf(stderr, "thread %d of %d: %.2f of its share\n", i, n, share[i]);
  }
  unequal += bad != 0;
  printf("%d equal threads\n", n);
}

static atomic_int set;
static void* spin(void* p) {
  while (!atomic_load_explicit(&set, memory_order_acquire));
  return p;
}
static void* setter(void* p) {
  atomic_store_explicit(&set, 1, memory_order_release);
  return p;
}
static void spinners(int n) {
  pthread_t t[64], s;
  atomic_store(&set, 0);
  for (int i = 0; i < n; i++) pthread_create(&t[i], NULL, spin, NULL);
  pthread_create(&s, NULL, setter, NULL);
  for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
  pthread_join(s, NULL);
  printf("%d spinners\n", n);
}

// Each of n threads wants something that a maker has in its only place while the maker runs. Another thread that runs then takes it at once.
// So each must come to run at the same time as the maker. They compute between their tries, so nothing tells that they only wait.
static atomic_int place, without;  // `without`: those that have had nothing yet
static atomic_uint computed;
static void compute_a_little(unsigned* x) {
  for (unsigned i = *x >> 20; i; i--) *x = *x * 1664525 + 1013904223;
}
static void* make_things(void* p) {
  for (unsigned x = 1; atomic_load(&without); compute_a_little(&x)) atomic_store(&place, 1);
  return p;
}
static void* take_one(void* p) {
  unsigned x = (unsigned)(long)p;
  int got = 0;
  while (atomic_load(&without)) {
    compute_a_little(&x);
    if (atomic_exchange(&place, 0) && !got++) atomic_fetch_sub(&without, 1);
  }
  atomic_fetch_add(&computed, x);
  return NULL;
}
static void takers(int n) {
  pthread_t t[64], maker;
  atomic_store(&without, nptl_release() ? 0 : n);  // NPTL's threads need minutes for it on one CPU
  for (long i = 0; i < n; i++) pthread_create(&t[i], NULL, take_one, (void*)((i + 1) * 0x12345679));
  pthread_create(&maker, NULL, make_things, NULL);
  for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
  pthread_join(maker, NULL);
  printf("each of %d that take had something\n", n);
}

static void* nothing(void* p) { return p; }
static void beside_a_hog(int n) {
  pthread_t hog, t;
  static struct counter c;
  atomic_store(&stop, 0);
  pthread_create(&hog, NULL, count, &c);
  for (int i = 0; i < n; i++) {
    pthread_create(&t, NULL, nothing, NULL);
    pthread_join(t, NULL);
  }
  atomic_store(&stop, 1);
  pthread_join(hog, NULL);
  printf("%d short threads beside a hog\n", n);
}

// The thread that a joiner has made last comes first, but not for ever. The oldest thread of all waits behind it.
static void* oldest(void* p) {
  atomic_store(&set, 1);
  return p;
}
static void* make_and_join(void* p) {
  while (!atomic_load(&set)) {
    pthread_t t[3];
    for (int i = 0; i < 3; i++)
      if (pthread_create(&t[i], NULL, nothing, NULL) != 0) abort();
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
  }
  return p;
}
static void beside_joiners(int n) {
  pthread_t t[8], l;
  atomic_store(&set, 0);
  for (int i = 0; i < n; i++) {
    pthread_create(&t[i], NULL, make_and_join, NULL);
    if (i == 0) pthread_create(&l, NULL, oldest, NULL);  // the very first thread would run at once
  }
  for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
  pthread_join(l, NULL);
  printf("beside %d that make and join: had its turn\n", n);
}

int main(int argc, char** argv) {
  double time = argc > 1 ? atof(argv[1]) : 1;
  if (time >= 10) most = 2;
  shares(3, time);
  shares(7, time);
  shares(8, time);
  shares(64, time * 3);
  spinners(8);
  spinners(64);
  takers(8);
  beside_a_hog(1000);
  beside_joiners(2);
  beside_joiners(8);
  return unequal && !nptl_release();  // NPTL's shares are up to the kernel
}
