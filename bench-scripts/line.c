// SPDX-License-Identifier: MIT
// How long a cache line takes from one CPU to another and back. Where threads hand work to each other, much depends on that: it is about 80 ns
// between two threads of a core, and some hundreds between distant cores. The host of a virtual machine may move its CPUs from one to the other.
//
// Prints NAME=NUMBER: the nearest and the farthest of up to eight other CPUs, as seen from the first. Nothing where there is only one CPU.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { kRounds = 10000, kWarm = 1000, kOthers = 8, kCpus = 4096 };

static _Alignas(256) atomic_int line;  // relaxed: nothing else is handed over by it
static cpu_set_t* cpus;
static size_t cpus_size;

static void go_to(int cpu) {
  cpu_set_t* one = CPU_ALLOC(kCpus);
  CPU_ZERO_S(cpus_size, one);
  CPU_SET_S(cpu, cpus_size, one);
  sched_setaffinity(0, cpus_size, one);
  CPU_FREE(one);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void* answer(void* cpu) {
  go_to(*(int*)cpu);
  for (int i = 0; i < kRounds; i++) {
    while (atomic_load_explicit(&line, memory_order_relaxed) != 2 * i + 1) continue;
    atomic_store_explicit(&line, 2 * i + 2, memory_order_relaxed);
  }
  return NULL;
}

static double measure(int other) {
  pthread_t t;
  atomic_store(&line, 0);
  if (pthread_create(&t, NULL, answer, &other)) exit(1);
  double began = 0;
  for (int i = 0; i < kRounds; i++) {
    if (i == kWarm) began = now();
    atomic_store_explicit(&line, 2 * i + 1, memory_order_relaxed);
    while (atomic_load_explicit(&line, memory_order_relaxed) != 2 * i + 2) continue;
  }
  double ns = (now() - began) / (kRounds - kWarm);
  pthread_join(t, NULL);
  return ns;
}

int main(void) {
  cpus_size = CPU_ALLOC_SIZE(kCpus);
  cpus = CPU_ALLOC(kCpus);
  CPU_ZERO_S(cpus_size, cpus);
  if (sched_getaffinity(0, cpus_size, cpus)) return 1;
  int count = CPU_COUNT_S(cpus_size, cpus), others = count - 1 < kOthers ? count - 1 : kOthers;
  double nearest = 0, farthest = 0;
  for (int cpu = 0, seen = 0, asked = 0; asked < others; cpu++) {
    if (!CPU_ISSET_S(cpu, cpus_size, cpus)) continue;
    if (seen++ == 0) go_to(cpu);
    // Evenly among the others, the last of them included.
    else if ((seen - 1) * others / (count - 1) > asked) {
      asked++;
      double ns = measure(cpu);
      if (!nearest || ns < nearest) nearest = ns;
      if (ns > farthest) farthest = ns;
    }
  }
  if (others > 0) printf("nearest=%.0f farthest=%.0f\n", nearest, farthest);
  return 0;
}
