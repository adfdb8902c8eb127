// SPDX-License-Identifier: MIT
// Each thread has a base of GS of its own, which it can write by an instruction (FSGSBASE), and the threads that it makes begin with it.
// Firefox addresses the memory of its sandboxed libraries so. Elsewhere there is nothing to see.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "go_elsewhere.h"

#if defined(__x86_64__)
enum { kThreads = 12, kRounds = 60 };

static void set(const void* to) { __asm__ volatile("wrgsbase %0" ::"r"(to) : "memory"); }
static void* get(void) {
  void* base;
  __asm__ volatile("rdgsbase %0" : "=r"(base)::"memory");
  return base;
}
static long first_word(void) {
  long word;
  __asm__ volatile("mov %%gs:0, %0" : "=r"(word)::"memory");
  return word;
}

static atomic_int wrong;
static void check(const long* base) {
  if (get() != base || (base && first_word() != *base)) wrong++;
}
static void* inherits(void* p) {
  for (long i = 0; i < 5; i++) {
    check(p);
    go_elsewhere(i);
  }
  return NULL;
}
static void* changes(void* p) {
  long words[2] = {(long)p, -(long)p}, k = (long)p;
  for (int i = 0; i < kRounds; i++) {
    if (i % 16 == 7) assert(syscall(SYS_arch_prctl, 0x1001 /* ARCH_SET_GS */, &words[i % 2]) == 0);
    else set(&words[i % 2]);
    go_elsewhere(k + i);
    check(&words[i % 2]);
    if (i % 20 == 3) {
      pthread_t t;
      assert(pthread_create(&t, NULL, inherits, &words[i % 2]) == 0 && pthread_join(t, NULL) == 0);
      check(&words[i % 2]);
    }
  }
  return NULL;
}
static void* has_none(void* p) {
  for (long i = 0; i < kRounds; i++) {
    check(NULL);
    go_elsewhere(i);
  }
  return p;
}
static void all(void) {
  pthread_t t[kThreads];
  for (long i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, i % 3 ? changes : has_none, (void*)i) == 0);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
}
static long of_main = 77;
static const long* in_handler;
static void handler(int sig) {
  go_elsewhere(sig - SIGUSR1);
  in_handler = get();
}

int main(void) {
  if (!(getauxval(AT_HWCAP2) & 2)) return 0;
  all();
  printf("wrong: %d\n", wrong);
  set(&of_main);
  pthread_t t;
  assert(pthread_create(&t, NULL, inherits, &of_main) == 0);
  for (long i = 0; i < kRounds; i++) {
    check(&of_main);
    go_elsewhere(i);
  }
  pthread_join(t, NULL);
  signal(SIGUSR1, handler);
  raise(SIGUSR1);
  printf("wrong: %d, in a handler: %d\n", wrong, in_handler == &of_main);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    check(&of_main);
    set(NULL);
    all();
    printf("wrong in a child: %d\n", wrong);
    fflush(stdout);
    _exit(0);
  }
  int status;
  assert(waitpid(child, &status, 0) == child && status == 0);
  check(&of_main);
  printf("wrong: %d\n", wrong);
  return 0;
}
#else
int main(void) { return 0; }
#endif
