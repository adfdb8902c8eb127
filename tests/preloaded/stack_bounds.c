// SPDX-License-Identifier: MIT
// How large a thread's stack is: what pthread_getattr_np tells, where the guard is, and which bytes can be used. First each size is tried in a
// process of its own, and all is exact. Then stacks of several sizes take turns. libc may then give a larger one that it has kept.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kPage = 4096, kOther = 32768 };
static size_t page, rest;  // of the kernel; and what may lie between a stack and its guard, where pages are larger than sizes' steps
static __thread sigjmp_buf back;
static __thread size_t reached;
static void faulted(int sig) { siglongjmp(back, sig); }

static int usable(volatile char* at) {
  if (sigsetjmp(back, 1)) return 0;
  *at = *at;
  return 1;
}

// Uses the stack until a fault ends it.
static __attribute__((noinline)) int go_down(const char* from) {
  volatile char room[200];
  room[0] = 1;
  reached = (size_t)(from - (const char*)room);
  return room[0] == 1 ? go_down(from) + room[0] : 0;
}

struct Stack {
  size_t asked, asked_guard;  // 0: the default size
  size_t told, guard, depth;
  int sizes_agree, tells_place, all_usable, guard_faults;
};

static void* look(void* p) {
  struct Stack* s = p;
  pthread_attr_t a;
  pthread_getattr_np(pthread_self(), &a);
  void* told_low;
  size_t size;
  pthread_attr_getstack(&a, &told_low, &s->told);
  pthread_attr_getstacksize(&a, &size);
  pthread_attr_getguardsize(&a, &s->guard);
  pthread_attr_destroy(&a);
  s->sizes_agree = size == s->told;

  char* low = told_low;
  char* frame = __builtin_frame_address(0);
  // The told place has this frame, and this thread's variables too.
  char* variable = (char*)&reached;
  s->tells_place = frame >= low && frame < low + s->told && variable >= low && variable < low + s->told;

  stack_t other = {malloc(kOther), 0, kOther};
  sigaltstack(&other, NULL);
  s->all_usable = 1;
  for (char* q = low; q < frame - kPage; q += kPage) s->all_usable &= usable(q);
  s->guard_faults = 1;
  low -= (uintptr_t)low % page;  // a size may end within a page
  for (size_t o = 1; o <= s->guard; o += kPage - 1) s->guard_faults &= !usable(low - o);
  if (s->guard) {
    s->guard_faults &= !usable(low - s->guard);
    if (!sigsetjmp(back, 1)) go_down(frame);
    s->depth = reached;
  }
  other.ss_flags = SS_DISABLE;
  sigaltstack(&other, NULL);
  free(other.ss_sp);
  return NULL;
}

static int run(struct Stack* s) {
  pthread_attr_t a;
  pthread_attr_init(&a);
  if (s->asked) pthread_attr_setstacksize(&a, s->asked);
  pthread_attr_setguardsize(&a, s->asked_guard);
  pthread_t t;
  int e = pthread_create(&t, &a, look, s);
  pthread_attr_destroy(&a);
  if (e) printf("size %zu, guard %zu: %s\n", s->asked, s->asked_guard, strerror(e));
  else pthread_join(t, NULL);
  return e == 0;
}

// Recursion ends where the told stack ends: it uses all of that but TLS, TCB and the frames before it.
static int ends_in_time(const struct Stack* s) { return !s->guard || (s->depth < s->told + rest && s->depth + 3 * kPage > s->told); }

static void alone(size_t size, size_t guard) {
  fflush(stdout);
  if (fork() == 0) {
    struct Stack s = {size, guard};
    if (run(&s))
      printf("size %zu, guard %zu: told %zu and %zu, agree %d, place %d, usable %d, guard faults %d, ends in time %d\n", size, guard,
             s.told, s.guard, s.sizes_agree, s.tells_place, s.all_usable, s.guard_faults, ends_in_time(&s));
    exit(0);
  }
  int status = 0;
  wait(&status);
  if (status) printf("size %zu, guard %zu: ended with %x\n", size, guard, status);
}

static const size_t sizes[] = {16384, 20480, 36864, 57344, 61440, 65536, 131072, 262144, 1048576, 1052672, 2105344, 8 << 20, 0};
static const size_t guards[] = {kPage, 0, 3 * kPage, 1, 65536};
enum { kSizes = sizeof sizes / sizeof *sizes, kGuards = sizeof guards / sizeof *guards };

static void* turns(void* p) {
  int wrong = 0;
  for (int i = 0; i < 60; i++) {
    int n = i * 7 + (int)(long)p;
    struct Stack s = {sizes[n % kSizes], guards[n / 3 % kGuards]};
    if (!run(&s) || s.told < s.asked || !s.sizes_agree || !s.tells_place || !s.all_usable || !s.guard_faults || !ends_in_time(&s)) wrong++;
  }
  return (void*)(long)wrong;
}

static void* default_told(void* p) {
  struct Stack* s = p;
  pthread_attr_t a;
  pthread_getattr_np(pthread_self(), &a);
  pthread_attr_getstacksize(&a, &s->told);
  pthread_attr_getguardsize(&a, &s->guard);
  pthread_attr_destroy(&a);
  return NULL;
}
static void defaults(void) {
  pthread_attr_t a;
  pthread_getattr_default_np(&a);
  for (size_t size = 1052672; size < 5000000; size *= 2) {
    pthread_attr_setstacksize(&a, size);
    pthread_attr_setguardsize(&a, 2 * kPage);
    pthread_setattr_default_np(&a);
    struct Stack s = {0};
    pthread_t t;
    pthread_create(&t, NULL, default_told, &s);
    pthread_join(t, NULL);
    printf("default %zu: told %zu and %zu\n", size, s.told, s.guard);
  }
  pthread_attr_destroy(&a);
}

int main(void) {
  page = (size_t)sysconf(_SC_PAGESIZE);
  rest = page - kPage;
  struct sigaction sa = {.sa_handler = faulted, .sa_flags = SA_ONSTACK};
  sigaction(SIGSEGV, &sa, NULL);
  sigaction(SIGBUS, &sa, NULL);
  for (int i = 0; i < kSizes; i++)
    for (int k = 0; k < kGuards; k++) alone(sizes[i], guards[k]);
  alone(100000, kPage);
  alone(1052672 + 100, kPage);
  alone(16383, kPage);
  fflush(stdout);
  if (fork() == 0) {
    defaults();
    exit(0);
  }
  wait(NULL);
  pthread_t t[4];
  for (long i = 0; i < 4; i++) pthread_create(&t[i], NULL, turns, (void*)i);
  for (int i = 0; i < 4; i++) {
    void* wrong;
    pthread_join(t[i], &wrong);
    printf("in turn: %ld wrong\n", (long)wrong);
  }
  return 0;
}
