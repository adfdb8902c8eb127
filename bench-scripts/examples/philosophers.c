// SPDX-License-Identifier: MIT
// Dining philosophers: a program of plain POSIX threads that knows nothing of fibers. It shows a deadlock: on NPTL the program hangs
// without a word, and on fiberthread there is a report with each wait, the lock's owner and the cycle. If the forks are taken in order,
// there is no deadlock.
//
//   build/examples/philosophers [--ordered] [PHILOSOPHERS [MEALS]]
//
//   LD_PRELOAD=build/libfiberthread.so build/examples/philosophers            the report, then it waits for ever (Ctrl-C)
//   FIBERTHREAD_DEADLOCK=abort LD_PRELOAD=… build/examples/philosophers       the report, then SIGABRT
//   LD_PRELOAD=build/libfiberthread.so build/examples/philosophers --ordered  all have their meals
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int philosophers = 5, meals = 1000, ordered;
static pthread_mutex_t* forks;
static long* eaten;
static pthread_barrier_t all_have_one;

static void* dine(void* p) {
  long i = (long)p;
  char name[16];
  snprintf(name, sizeof name, "philosopher %ld", i % 100);
  pthread_setname_np(pthread_self(), name);
  long left = i, right = (i + 1) % philosophers;
  // Each philosopher takes the left fork first. The last one does so too, which closes the circle. In order, each takes the lower fork
  // first.
  long first = left, second = right;
  if (ordered && right < left) first = right, second = left;
  for (int meal = 0; meal < meals; meal++) {
    pthread_mutex_lock(&forks[first]);
    // This makes the deadlock happen at the first meal, and not once in a million.
    if (!ordered && meal == 0) pthread_barrier_wait(&all_have_one);
    else sched_yield();  // the philosopher thinks
    pthread_mutex_lock(&forks[second]);
    eaten[i]++;
    pthread_mutex_unlock(&forks[second]);
    pthread_mutex_unlock(&forks[first]);
  }
  return NULL;
}

int main(int argc, char** argv) {
  int a = 1;
  if (a < argc && !strcmp(argv[a], "--ordered")) ordered = 1, a++;
  if (a < argc) philosophers = atoi(argv[a++]);
  if (a < argc) meals = atoi(argv[a++]);
  if (philosophers < 2 || meals < 1 || a < argc) {
    fprintf(stderr, "usage: %s [--ordered] [PHILOSOPHERS [MEALS]]\n", argv[0]);
    return 2;
  }
  forks = calloc(philosophers, sizeof *forks);
  eaten = calloc(philosophers, sizeof *eaten);
  pthread_t* threads = calloc(philosophers, sizeof *threads);
  for (int i = 0; i < philosophers; i++) pthread_mutex_init(&forks[i], NULL);
  pthread_barrier_init(&all_have_one, NULL, philosophers);
  for (long i = 0; i < philosophers; i++)
    if (pthread_create(&threads[i], NULL, dine, (void*)i)) {
      fprintf(stderr, "no more threads\n");
      return 1;
    }
  long all = 0;
  for (int i = 0; i < philosophers; i++) {
    pthread_join(threads[i], NULL);
    all += eaten[i];
  }
  printf("%d philosophers have had %ld meals\n", philosophers, all);
  return 0;
}
