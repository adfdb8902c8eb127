// SPDX-License-Identifier: MIT
// What debuggers and programs read in a pthread_mutex_t: how often it is locked, by which thread, and of what kind it is. If a mutex needs
// the kernel (inheritance), its owner is the kernel's thread, and the test does not print it.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t m;
static int other_tid;

static void look(const char* when) {
  int owner = __atomic_load_n(&m.__data.__owner, __ATOMIC_RELAXED);
  const char* who = owner == 0 ? "nobody" : owner == gettid() ? "me" : owner == other_tid ? "the other" : "?";
  // The higher bits of the kind concern lock elision.
  printf("%s: owner %s, kind %d", when, who, m.__data.__kind & 127);
  // For other kinds the count has no meaning, though NPTL sets some.
  if ((m.__data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE) printf(", count %u", m.__data.__count);
  printf("\n");
}

static pthread_mutex_t go = PTHREAD_MUTEX_INITIALIZER, done = PTHREAD_MUTEX_INITIALIZER;
static void* holds(void* p) {
  __atomic_store_n(&other_tid, gettid(), __ATOMIC_RELAXED);
  pthread_mutex_lock(&done);
  pthread_mutex_lock(&m);
  look("locked by the other, seen by it");
  *(volatile int*)p = 1;
  pthread_mutex_lock(&go);
  pthread_mutex_unlock(&go);
  pthread_mutex_unlock(&m);
  pthread_mutex_unlock(&done);
  return p;
}
static void* dies(void* p) {
  pthread_mutex_lock(&m);
  return p;
}

static void kind(int type, int robust) {
  printf("-- type %d%s\n", type, robust ? " robust" : "");
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_settype(&a, type);
  pthread_mutexattr_setrobust(&a, robust);
  memset(&m, 0x55, sizeof m);
  assert(pthread_mutex_init(&m, &a) == 0);
  look("new");
  pthread_mutex_lock(&m);
  look("locked");
  if (type == PTHREAD_MUTEX_RECURSIVE) {
    pthread_mutex_lock(&m);
    look("twice");
    pthread_mutex_trylock(&m);
    look("three times");
    pthread_mutex_unlock(&m);
    look("twice again");
    pthread_mutex_unlock(&m);
  }
  pthread_mutex_unlock(&m);
  look("unlocked");
  pthread_mutex_trylock(&m);
  look("tried");
  pthread_mutex_unlock(&m);
  struct timespec past = {1, 0};
  pthread_mutex_timedlock(&m, &past);
  look("timed");
  // A condition wait releases the mutex for a while.
  pthread_cond_t c = PTHREAD_COND_INITIALIZER;
  pthread_cond_timedwait(&c, &m, &past);
  look("after a wait");
  pthread_mutex_unlock(&m);
  look("unlocked");

  volatile int held = 0;
  pthread_t t;
  pthread_mutex_lock(&go);
  assert(pthread_create(&t, NULL, holds, (void*)&held) == 0);
  while (!held) usleep(1000);
  look("the other's");
  pthread_mutex_unlock(&go);
  pthread_mutex_lock(&done);
  pthread_mutex_unlock(&done);
  pthread_mutex_lock(&m);
  look("mine");
  pthread_mutex_unlock(&m);
  pthread_join(t, NULL);
  if (robust) {
    assert(pthread_create(&t, NULL, dies, NULL) == 0 && pthread_join(t, NULL) == 0);
    pthread_mutex_lock(&m);
    printf("inconsistent: owner %d\n", m.__data.__owner);
    pthread_mutex_consistent(&m);
    look("consistent");
    pthread_mutex_unlock(&m);
    look("unlocked");
  }
}

static void* all(void* p) {
  for (int robust = 0; robust < 2; robust++)
    for (int type = 0; type < 4; type++) kind(type, robust);
  // Static initialisers.
  static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER, recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
                         checking = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP, adaptive = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
  pthread_mutex_t* some[] = {&plain, &recursive, &checking, &adaptive};
  for (int i = 0; i < 4; i++) {
    m = *some[i];
    look("static");
    pthread_mutex_lock(&m);
    look("static, locked");
    pthread_mutex_unlock(&m);
    look("static, unlocked");
  }
  return p;
}

int main() {
  all(NULL);
  pthread_t t;
  assert(pthread_create(&t, NULL, all, NULL) == 0 && pthread_join(t, NULL) == 0);
  return 0;
}
