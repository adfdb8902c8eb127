// SPDX-License-Identifier: MIT
// Causes a known number of each event that a trace shows. With the argument "fork", a child does the same. With "exits FILE", a child
// makes no thread.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kWaiters = 20, kYields = 5, kHogs = 8 };
static sem_t go;
static int gate[2];
static atomic_int come, turns;

static void* waits(void* p) {
  pthread_setname_np(pthread_self(), "waiter");
  come++;
  while (sem_wait(&go)) {
  }
  for (int i = 0; i < kYields; i++) sched_yield();
  return p;
}

// Computes until all hogs have had a turn. There are more of them than there may be slots, so this takes preemption.
static void* computes(void* p) {
  pthread_setname_np(pthread_self(), "hog \"1\\");
  turns++;
  while (turns < kHogs) {
  }
  return p;
}
static void* nothing(void* p) { return p; }

// Sleeps in the kernel by a system call instruction, which the library cannot know beforehand.
static void* blocks(void* p) {
  char c;
  struct timespec t = {0, 200000000};
  register long nr __asm__("rax") = SYS_nanosleep;
#if defined(__x86_64__)
  __asm__ volatile("syscall" : "+a"(nr) : "D"(&t), "S"(0) : "rcx", "r11", "memory");
#endif
  return p;
}

static void all(void) {
  pthread_t t[kWaiters], hog[kHogs], other, blocker;
  sem_init(&go, 0, 0);
  struct timespec a_while = {0, 20000000};
  come = 0;
  for (int i = 0; i < kWaiters; i++) assert(!pthread_create(&t[i], NULL, waits, NULL));
  do nanosleep(&a_while, NULL);  // by now all threads wait
  while (come < kWaiters);
  for (int i = 0; i < kWaiters; i++) sem_post(&go);
  for (int i = 0; i < kWaiters; i++) pthread_join(t[i], NULL);
  pthread_create(&blocker, NULL, blocks, NULL);
  nanosleep(&a_while, NULL);
  // Other fibers must want the slot, or it is not handed over.
  for (int i = 0; i < 100; i++) {
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    pthread_create(&other, NULL, nothing, NULL);
    pthread_join(other, NULL);
  }
  pthread_join(blocker, NULL);
  // The hogs come last: there may be more slots after them, and then no fiber would wait for one.
  turns = 0;
  for (int i = 0; i < kHogs; i++) assert(!pthread_create(&hog[i], NULL, computes, NULL));
  for (int i = 0; i < kHogs; i++) pthread_join(hog[i], NULL);
}

int main(int argc, char** argv) {
  all();
  if (argc > 1 && !strcmp(argv[1], "fork")) {
    int pid = fork(), status;
    if (pid == 0) {
      all();
      return 0;
    }
    waitpid(pid, &status, 0);
    assert(status == 0);
    printf("%d\n", pid);
  }
  // A child that makes no thread. The parent's trace goes on, so FILE still says so.
  if (argc > 2 && !strcmp(argv[1], "exits")) {
    int pid = fork(), status;
    if (pid == 0) return 0;
    waitpid(pid, &status, 0);
    char text[512] = "";
    FILE* f = fopen(argv[2], "r");
    assert(status == 0 && f && fread(text, 1, sizeof text - 1, f) > 0);
    puts(strstr(text, "not ended yet") ? "goes on" : "has ended");
  }
  return 0;
}
