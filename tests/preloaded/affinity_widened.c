// SPDX-License-Identifier: MIT
// The process may use one CPU when it makes its first thread. That thread takes all CPUs back, and its own threads inherit
// them. So does a thread whose attributes have all CPUs.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static cpu_set_t allowed, one;

static void* has_all(void* p) {
  cpu_set_t set;
  assert(sched_getaffinity(0, sizeof set, &set) == 0 && CPU_EQUAL(&set, &allowed));
  assert(pthread_getaffinity_np(pthread_self(), sizeof set, &set) == 0 && CPU_EQUAL(&set, &allowed));
  return NULL;
}

static void* has_one(void* p) {
  cpu_set_t set;
  assert(sched_getaffinity(0, sizeof set, &set) == 0 && CPU_EQUAL(&set, &one));
  return NULL;
}

static void in_thread(const pthread_attr_t* attr, void* (*function)(void*)) {
  pthread_t t;
  assert(pthread_create(&t, attr, function, NULL) == 0 && pthread_join(t, NULL) == 0);
}

static void* widens(void* p) {
  has_one(NULL);
  cpu_set_t wanted;
  memset(&wanted, 0xff, sizeof wanted);  // the kernel leaves out those that there are not
  assert((p ? sched_setaffinity(0, sizeof wanted, &wanted) : pthread_setaffinity_np(pthread_self(), sizeof allowed, &allowed)) == 0);
  has_all(NULL);
  in_thread(NULL, has_all);
  return NULL;
}

int main(void) {
  assert(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  for (int i = 0; CPU_COUNT(&one) == 0; i++)
    if (CPU_ISSET(i, &allowed)) CPU_SET(i, &one);
  assert(sched_setaffinity(0, sizeof one, &one) == 0);
  for (long i = 0; i < 2; i++) {
    pthread_t t;
    assert(pthread_create(&t, NULL, widens, (void*)i) == 0 && pthread_join(t, NULL) == 0);
    in_thread(NULL, has_one);
  }
  pthread_attr_t attr;
  assert(pthread_attr_init(&attr) == 0 && pthread_attr_setaffinity_np(&attr, sizeof allowed, &allowed) == 0);
  in_thread(&attr, has_all);
  puts("ok");
  return 0;
}
