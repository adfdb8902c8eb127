// SPDX-License-Identifier: MIT
// Whatever a scheduler does to the sets of CPUs of its kernel threads: each thread of the program runs with that of the process. The main
// thread makes and wakes others while it goes on itself.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kRounds = 300, kBytes = 1024 };
static unsigned char whole[kBytes];
static atomic_int ran, other_sets;
static sem_t woken;

// Asks the kernel for the set of the kernel thread that runs, by a system call instruction that no library can intercept.
static long set_of_caller(unsigned char* set) {
  memset(set, 0, kBytes);
#if defined(__x86_64__)
  long r;
  __asm__ volatile("syscall" : "=a"(r) : "a"(SYS_sched_getaffinity), "D"(0), "S"(kBytes), "d"(set) : "rcx", "r11", "memory");
  return r;
#else
  register long x0 __asm__("x0") = 0, x1 __asm__("x1") = kBytes, x2 __asm__("x2") = (long)set, x8 __asm__("x8") = SYS_sched_getaffinity;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x1), "r"(x2), "r"(x8) : "memory");
  return x0;
#endif
}
static void look(void) {
  unsigned char set[kBytes];
  if (set_of_caller(set) <= 0) abort();
  other_sets += memcmp(set, whole, kBytes) != 0;
}

static void* made(void* p) {
  look();
  ran++;
  return p;
}
static void* woken_body(void* p) {
  for (int i = 0; i < kRounds; i++) {
    while (sem_wait(&woken)) {
    }
    look();
    ran++;
  }
  return p;
}
static void go_on_until(int n) {
  while (ran < n) {
  }
}
// Idle workers fall asleep meanwhile, and the CPUs of a virtual machine with them.
static void rest(void) { nanosleep(&(struct timespec){0, 300000}, NULL); }

int main(void) {
  if (set_of_caller(whole) <= 0) abort();
  for (int i = 0; i < kRounds; i++) {
    pthread_t t;
    if (pthread_create(&t, NULL, made, NULL)) abort();
    go_on_until(i + 1);
    look();
    pthread_join(t, NULL);
    rest();
  }
  pthread_t t;
  sem_init(&woken, 0, 0);
  if (pthread_create(&t, NULL, woken_body, NULL)) abort();
  for (int i = 0; i < kRounds; i++) {
    rest();
    sem_post(&woken);
    go_on_until(kRounds + i + 1);
    look();
  }
  pthread_join(t, NULL);
  printf("%d ran, %d with another set of CPUs\n", ran, other_sets);
  return 0;
}
