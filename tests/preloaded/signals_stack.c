// SPDX-License-Identifier: MIT
// The alternate stack: which thread has it, what handlers see of it, and stack overflows that a handler survives.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif
enum { kSize = 64 * 1024 };

static void handle(int sig, void (*handler)(int, siginfo_t*, void*), int flags) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_sigaction = handler;
  sa.sa_flags = flags | SA_SIGINFO;
  assert(sigaction(sig, &sa, NULL) == 0);
}
static const char* result(int r) {
  return r == 0            ? "0"
         : errno == EPERM  ? "EPERM"
         : errno == ENOMEM ? "ENOMEM"
         : errno == EINVAL ? "EINVAL"
         : errno == EFAULT ? "EFAULT"
                           : "?";
}
static int set(void* sp, size_t size, unsigned flags) {
  stack_t s = {sp, (int)flags, size};
  return sigaltstack(&s, NULL);
}
static const char* state(void) {
  stack_t s;
  static __thread char text[64];
  assert(sigaltstack(NULL, &s) == 0);
  snprintf(text, sizeof text, "%s%s%s size %zu", s.ss_flags & SS_DISABLE ? "disabled" : "enabled", s.ss_flags & SS_ONSTACK ? " in use" : "",
           s.ss_flags & (int)SS_AUTODISARM ? " autodisarm" : "", s.ss_size);
  return text;
}

static __thread char* mine;
static __thread volatile int depth;  // volatile, since compilers believe that raise() is a "leaf", which calls nothing here
static int on_mine(void) {
  char here;
  return (uintptr_t)&here - (uintptr_t)mine < kSize;
}

static void look(int sig, siginfo_t* info, void* context) {
  ucontext_t* uc = context;
  printf("  handler of %d: on alternate %d, shows %zu bytes, flags %x, %s", sig - SIGRTMIN, on_mine(), uc->uc_stack.ss_size,
         (unsigned)uc->uc_stack.ss_flags, state());
  printf(", set: %s\n", result(set(mine, kSize / 2, 0)));
  if (!depth++) raise(SIGRTMIN);  // the second handler is on the same stack
  depth--;
}
static void wait_there(int sig, siginfo_t* info, void* context) {
  // Like any other code, a handler may wait and move.
  for (int i = 0; i < 5; i++) usleep(500), sched_yield();
  printf("  waited on alternate %d: %s\n", on_mine(), state());
}

static void table(void) {
  printf(" at first: %s\n", state());
  printf(" too small: %s", result(set(mine, 1000, 0)));
  printf(", strange flags: %s", result(set(mine, kSize, 4)));
  printf(", strange address: %s\n", result(sigaltstack((stack_t*)8, NULL)));
  printf(" still: %s\n", state());
  printf(" set: %s", result(set(mine, kSize, 0)));
  printf(", %s\n", state());
  raise(SIGRTMIN + 0);  // SA_ONSTACK
  printf(" then: %s\n", state());
  set(mine, kSize, 0);
  raise(SIGRTMIN + 1);  // runs on the thread's own stack
  printf(" then: %s\n", state());
  set(mine, kSize, 0);
  pthread_kill(pthread_self(), SIGRTMIN + 2);
  printf(" with SS_ONSTACK: %s", result(set(mine, kSize, SS_ONSTACK)));
  printf(", %s\n", state());
  printf(" autodisarm: %s", result(set(mine, kSize, SS_AUTODISARM)));
  printf(", %s\n", state());
  depth = 1;
  raise(SIGRTMIN + 0);
  depth = 0;
  printf(" armed again: %s\n", state());
  printf(" off: %s", result(set(NULL, 0, SS_DISABLE)));
  printf(", %s\n", state());
  raise(SIGRTMIN + 0);
  printf(" off: %s, %s\n", result(set(NULL, 0, SS_DISABLE)), state());
}
static void* in_thread(void* p) {
  mine = malloc(kSize);
  table();
  set(mine, kSize, 0);  // the alternate stack ends with the thread
  return p;
}

// ---- overflow ----

static __thread sigjmp_buf back;
static __thread int overflows;
static void overflowed(int sig, siginfo_t* info, void* context) {
  assert(sig == SIGSEGV && info->si_code > 0 && on_mine());
  overflows++;
  if (overflows % 2) usleep(100);
  siglongjmp(back, 1);
}
static __attribute__((noinline)) int deep(int n) {
  volatile char room[512];
  room[0] = (char)n;
  return n == -1 ? 0 : deep(n + 1) + room[0];
}
static void* overflow(void* p) {
  mine = malloc(kSize);
  for (int i = 0; i < 20; i++) {
    assert(set(mine, kSize, 0) == 0);
    if (!sigsetjmp(back, 1)) deep(0);
    assert(!on_mine());
    sched_yield();
  }
  return (void*)(long)overflows;
}

static void* many(void* p) {
  mine = malloc(kSize);
  stack_t s = {mine, 0, kSize};
  for (volatile int i = 0; i < 200; i++) {
    stack_t now;
    assert(sigaltstack(&s, &now) == 0);
    assert(i == 0 ? now.ss_flags == SS_DISABLE : now.ss_sp == mine && now.ss_size == kSize);
    if (!sigsetjmp(back, 1)) pthread_kill(pthread_self(), SIGRTMIN + 3);
    if (i % 8 == 0) usleep(50);
  }
  return p;
}
static void leave(int sig, siginfo_t* info, void* context) {
  assert(on_mine());
  sched_yield();
  siglongjmp(back, 1);
}

static void* yields(void* p) {
  sched_yield();
  return p;
}
static void* state_there(void* p) { return (void*)state(); }
int main() {
  mine = malloc(kSize);
  pthread_t t[8];
  void* r;
  pthread_create(t, NULL, yields, NULL);
  pthread_join(t[0], NULL);
  handle(SIGRTMIN + 0, look, SA_ONSTACK | SA_NODEFER);
  handle(SIGRTMIN + 1, look, 0);
  handle(SIGRTMIN + 2, wait_there, SA_ONSTACK);
  handle(SIGRTMIN + 3, leave, SA_ONSTACK);
  puts("main");
  set(NULL, 0, SS_DISABLE);
  table();
  puts("thread");
  pthread_create(t, NULL, in_thread, NULL);
  pthread_join(t[0], NULL);
  pthread_create(t, NULL, state_there, NULL);
  pthread_join(t[0], &r);

  handle(SIGSEGV, overflowed, SA_ONSTACK);
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, 256 * 1024);
  for (int i = 0; i < 8; i++) assert(pthread_create(&t[i], &a, overflow, NULL) == 0);
  long n = 0;
  for (int i = 0; i < 8; i++) pthread_join(t[i], &r), n += (long)r;
  printf("overflows survived: %ld\n", n);
  for (int i = 0; i < 8; i++) pthread_create(&t[i], NULL, many, NULL);
  for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
  puts("each its own");
  return 0;
}
