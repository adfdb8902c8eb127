// SPDX-License-Identifier: MIT
// Since 2.41, libc keeps a state for each thread that asks for random numbers. No two threads share a state, not even in the child of a
// fork, and an ending thread gives its state back. If libc has no such states, the test finds none, and prints the same.
#define _GNU_SOURCE
#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kWords = 1024, kThreads = 1000, kRounds = 6, kInTurn = 100000, kBytes = 32 };

// The word of struct pthread that changes when a thread asks for the first time. 0: no word does.
static size_t where;
static void* find(void* p) {
  uintptr_t before[kWords], *now = (uintptr_t*)pthread_self();
  size_t n = *(const uint32_t*)p / sizeof *now;
  char c;
  memcpy(before, now, n * sizeof *now);
  assert(getrandom(&c, 1, 0) == 1);
  // From 2.35 to 2.40, libc keeps the rseq area in struct pthread. The kernel writes to it when the thread comes to another CPU.
  ptrdiff_t* rseq = dlsym(RTLD_DEFAULT, "__rseq_offset");
  uintptr_t area = rseq ? (uintptr_t)__builtin_thread_pointer() + *rseq : 0;
  for (size_t i = 0; i < n; i++)
    if (now[i] != before[i] && (uintptr_t)&now[i] - area >= 32) where = i;
  return NULL;
}
static uintptr_t state(void) { return where ? ((uintptr_t*)pthread_self())[where] : 0; }

static char (*drawn)[kBytes];
static uintptr_t* states;
static size_t count;
static pthread_barrier_t all_there;
static pthread_key_t key;

static void draw(void) {
  size_t i = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
  assert(getrandom(drawn[i], kBytes, 0) == kBytes);
  states[i] = state();
}
static void* live_together(void* p) {
  draw();
  pthread_barrier_wait(&all_there);
  draw();
  return p;
}
static void* live_in_turn(void* p) {
  draw();
  return p;
}
static void* draw_at_the_end(void* p) {
  pthread_setspecific(key, &key);
  return p;
}
static void at_the_end(void* p) { draw(); }

static int by_bytes(const void* a, const void* b) { return memcmp(a, b, kBytes); }
static int by_value(const void* a, const void* b) { return *(uintptr_t*)a < *(uintptr_t*)b ? -1 : *(uintptr_t*)a > *(uintptr_t*)b; }
static size_t different(uintptr_t* v, size_t n) {
  size_t k = 0;
  qsort(v, n, sizeof *v, by_value);
  for (size_t i = 0; i < n; i++) k += i == 0 || v[i] != v[i - 1];
  return k;
}
static void look(const char* what) {
  qsort(drawn, count, kBytes, by_bytes);
  for (size_t i = 1; i < count; i++) assert(memcmp(drawn[i], drawn[i - 1], kBytes) != 0);
  printf("%s: %zu different ones\n", what, count);
  count = 0;
}

static void together(int n) {
  pthread_t t[n];
  pthread_barrier_init(&all_there, NULL, n);
  for (int i = 0; i < n; i++) assert(pthread_create(&t[i], NULL, live_together, NULL) == 0);
  for (int i = 0; i < n; i++) assert(pthread_join(t[i], NULL) == 0);
}

int main() {
  enum { kMost = kInTurn + 1000 };
  drawn = mmap(NULL, sizeof *drawn * kMost, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  states = mmap(NULL, sizeof *states * kMost, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert(drawn != MAP_FAILED && states != MAP_FAILED);
  extern void* dlvsym(void*, const char*, const char*);
  pthread_t t;
  assert(pthread_create(&t, NULL, find, dlvsym(NULL, "_thread_db_sizeof_pthread", "GLIBC_PRIVATE")) == 0 && pthread_join(t, NULL) == 0);
  uintptr_t mains = (draw(), state());

  // Threads that live at the same time, and main.
  together(kThreads);
  states[2 * kThreads + 1] = mains;
  for (int i = 0; where && i < 2 * kThreads + 1; i++) assert(states[i] && !(states[i] & 1));
  // A thread that drew before and after the barrier has two entries.
  assert(!where || different(states, 2 * kThreads + 1) == kThreads + 1);
  look("together");

  // Threads one after another, so that TCBs are reused. There are no more states than threads at one time.
  for (int i = 0; i < kInTurn; i++) assert(pthread_create(&t, NULL, live_in_turn, NULL) == 0 && pthread_join(t, NULL) == 0);
  assert(!where || different(states, kInTurn) <= 2 * kThreads);
  look("in turn");

  // Threads that draw at their very end, and threads that end by pthread_exit.
  pthread_key_create(&key, at_the_end);
  for (int i = 0; i < 100; i++) assert(pthread_create(&t, NULL, draw_at_the_end, NULL) == 0 && pthread_join(t, NULL) == 0);
  look("at the end");

  // The states of idle TCBs go back, even if the library releases the TCBs themselves.
  size_t n = 0;
  uintptr_t* seen = malloc(sizeof *seen * kRounds * kThreads * 2);
  for (int round = 0; round < kRounds; round++) {
    together(kThreads);
    memcpy(seen + n, states, sizeof *seen * count);
    n += count;
    look("in rounds");
    usleep(500000);
  }
  // At most, all states of a round are still being given back while the next round begins.
  assert(!where || different(seen, n) <= 2 * kThreads + 100);

  // In parent and child: the threads of the child, and its main.
  fflush(stdout);
  together(50);
  size_t parents = count;
  pid_t pid = fork();
  if (pid == 0) {
    draw();
    mains = state();
    together(50);
    if (where && different(states + parents, count - parents) != 51) _exit(1);
    _exit(count == 2 * parents + 1 ? 0 : 2);
  }
  int status;
  assert(waitpid(pid, &status, 0) == pid && status == 0);
  count = 2 * parents + 1;  // the child's states stand behind the parent's
  look("parent and child");
  return 0;
}
