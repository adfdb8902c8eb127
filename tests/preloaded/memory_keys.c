// SPDX-License-Identifier: MIT
// Protection keys: each thread has rights of its own to the memory of a key, which it keeps wherever it runs on, and which the threads that
// it makes begin with. Without such a processor, the calls fail. (qemu emulates one: PROCESSOR=max tests/kernels.)
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "go_elsewhere.h"

enum { kThreads = 12, kRounds = 40 };
static int early, late = -1;
static atomic_int* protected;

// Main has had the key since before its first thread.
static void* uses(void* p) {
  for (int i = 0; i < kRounds; i++) {
    (*protected)++;
    assert(pkey_get(early) == 0);
    go_elsewhere(i + (int)(long)p);
  }
  return NULL;
}

// As a compiler at run time writes its code: the memory can be written only while a thread writes.
static void* opens_and_shuts(void* p) {
  for (int i = 0; i < kRounds; i++) {
    assert(pkey_set(early, PKEY_DISABLE_WRITE) == 0);
    go_elsewhere(i + (int)(long)p);
    assert(pkey_get(early) == PKEY_DISABLE_WRITE);
    assert(pkey_set(early, 0) == 0);
    (*protected)++;
    go_elsewhere(i + 1 + (int)(long)p);
    (*protected)++;
    assert(pkey_get(early) == 0);
  }
  return NULL;
}

static atomic_int phase;
static void* has_none(void* p) {  // made before the key
  phase = 1;
  while (phase < 2) usleep(200);
  for (int i = 0; i < kRounds; i++) {
    assert(pkey_get(late) == PKEY_DISABLE_ACCESS);
    go_elsewhere(i);
  }
  assert(pkey_set(late, PKEY_DISABLE_WRITE) == 0);
  return p;
}
static void* inherits(void* p) {
  for (int i = 0; i < kRounds; i++) {
    assert(pkey_get(late) == PKEY_DISABLE_WRITE);
    go_elsewhere(i);
  }
  return p;
}
static void* allocates(void* p) {
  late = pkey_alloc(0, PKEY_DISABLE_WRITE);
  assert(late > 0);
  pthread_t t;
  assert(pthread_create(&t, NULL, inherits, p) == 0);
  phase = 2;
  inherits(p);
  return (void*)(long)pthread_join(t, NULL);
}

static void all(void* (*start)(void*), const char* what) {
  pthread_t t[kThreads];
  for (long i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, start, (void*)i) == 0);
  for (int i = 0; i < kThreads; i++) assert(pthread_join(t[i], NULL) == 0);
  printf("%s: %d\n", what, *protected);
}

static void show(const char* what, int r) { printf("%s: %s\n", what, r == -1 ? strerrorname_np(errno) : "0"); }

static void* nothing(void* p) { return p; }

int main() {
  early = pkey_alloc(0, 0);
  if (early < 0) {
    assert(errno == ENOSPC || errno == ENOSYS || errno == EINVAL);
    pthread_t t;
    assert(pthread_create(&t, NULL, nothing, NULL) == 0 && pthread_join(t, NULL) == 0);
    assert(pkey_alloc(0, 0) == -1 && pkey_alloc(1, 0) == -1);
    printf("the processor has no protection keys\n");
    return 0;
  }
  protected = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert(protected != MAP_FAILED && pkey_mprotect(protected, 4096, PROT_READ | PROT_WRITE, early) == 0);
  all(uses, "rights from before the first thread");
  all(opens_and_shuts, "rights that change");
  assert(pkey_get(early) == 0);

  pthread_t a, b;
  assert(pthread_create(&a, NULL, has_none, NULL) == 0);
  while (phase < 1) usleep(200);
  assert(pthread_create(&b, NULL, allocates, NULL) == 0);
  assert(pthread_join(b, NULL) == 0 && pthread_join(a, NULL) == 0);
  assert(pkey_get(late) == PKEY_DISABLE_ACCESS);
  show("bad rights", pkey_set(early, 77));
  show("bad key", pkey_set(77, 0));
  show("flags", pkey_alloc(5, 0));
  fflush(stdout);

  pid_t child = fork();
  if (child == 0) {
    all(uses, "in a child");
    fflush(stdout);
    _exit(0);
  }
  int status;
  assert(waitpid(child, &status, 0) == child && status == 0);
  return 0;
}
