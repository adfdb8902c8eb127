// SPDX-License-Identifier: MIT
// A thread made with fiberthread_attr_setbound() has a kernel thread of its own, on which no other thread ever runs.
#define _GNU_SOURCE
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int kernel_thread(void) {
  char text[64] = "";
  if (readlink("/proc/thread-self", text, sizeof text - 1) <= 0) return -1;
  return atoi(strrchr(text, '/') + 1);
}

static volatile int its_own, moved, ended;
static void* bound(void* p) {
  its_own = kernel_thread();
  for (int i = 0; i < 2000; i++) {
    if (kernel_thread() != its_own) moved++;
    sched_yield();
  }
  ended = 1;
  return p;
}
static volatile int met;
static void* other(void* p) {
  while (!ended) {
    if (its_own && kernel_thread() == its_own && !ended) met++;
    sched_yield();
  }
  return p;
}

int main() {
  int (*set)(pthread_attr_t*, int) = dlsym(RTLD_DEFAULT, "fiberthread_attr_setbound");
  pthread_attr_t a;
  pthread_attr_init(&a);
  if (set) {
    assert(set(&a, 2) == EINVAL && set(&a, -1) == EINVAL);
    assert(set(&a, 1) == 0 && set(&a, 0) == 0 && set(&a, 0) == 0);
    // After 0, the attributes have no set of CPUs.
    cpu_set_t cpus;
    assert(pthread_attr_getaffinity_np(&a, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) == CPU_SETSIZE);
    assert(set(&a, 1) == 0 && set(&a, 1) == 0);
  }
  pthread_t t[4];
  for (int i = 0; i < 3; i++) assert(pthread_create(&t[i], NULL, other, NULL) == 0);
  assert(pthread_create(&t[3], &a, bound, NULL) == 0);
  for (int i = 3; i >= 0; i--) assert(pthread_join(t[i], NULL) == 0);
  printf("moved %d, met others %d\n", moved, met);
  pthread_attr_destroy(&a);
  return 0;
}
