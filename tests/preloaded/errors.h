// SPDX-License-Identifier: MIT
// Prints one line for each case: the function, the state or argument, and the result by name. The cases run on main before a thread was
// made, on main, on a thread, and on a detached one. All must answer alike, on NPTL and on fibers.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static inline int show(const char* function, const char* state, int r) {
  const char* name = r == ENOTSUP ? "ENOTSUP" : r > 0 ? strerrorname_np(r) : NULL;
  if (name) printf("%s: %s: %s\n", function, state, name);
  else printf("%s: %s: %d\n", function, state, r);
  return r;
}
// For functions that have no errors.
static inline void show_value(const char* function, const char* state, int v) { printf("%s: %s: %d\n", function, state, v); }
// The first for functions that return the error, the second for those that return -1 and set errno.
#define CASE(state, f, ...) show(#f, state, f(__VA_ARGS__))
#define FAILS(state, f, ...) show(#f, state, (errno = 0, f(__VA_ARGS__)) == -1 ? errno : 0)
// For the functions of C11, whose results have names of their own.
static inline int show_c11(const char* function, const char* state, int r) {
  static const struct {
    int value;
    const char* name;
  } names[] = {{thrd_success, "thrd_success"},
               {thrd_busy, "thrd_busy"},
               {thrd_error, "thrd_error"},
               {thrd_nomem, "thrd_nomem"},
               {thrd_timedout, "thrd_timedout"}};
  for (int i = 0; i < 5; i++)
    if (names[i].value == r) printf("%s: %s: %s\n", function, state, names[i].name);
  return r;
}
#define C11(state, f, ...) show_c11(#f, state, f(__VA_ARGS__))

static inline const char* format(const char* f, ...) {
  static char text[256][160];
  static int next;
  va_list list;
  va_start(list, f);
  char* t = text[next++ % 256];
  vsnprintf(t, sizeof *text, f, list);
  va_end(list);
  return t;
}

// Returns true if libc has what came with release 2.n. The library has its functions of that release in any case.
static inline bool since(int n) { return atoi(gnu_get_libc_version() + 2) >= n; }

pid_t tid_of(pthread_t) __asm__("pthread_gettid_np") __attribute__((weak));

static const struct timespec past = {1, 0}, negative = {-1, 0}, bad_low = {1, -1}, bad_high = {1, 1000000000};
static const struct {
  const char* name;
  const struct timespec* t;
} moments[] = {{"passed", &past}, {"before 1970", &negative}, {"tv_nsec -1", &bad_low}, {"tv_nsec 1e9", &bad_high}};
#define MOMENTS (sizeof moments / sizeof *moments)
static inline struct timespec soon(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  t.tv_nsec += 2000000;
  if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
  return t;
}
static const clockid_t clocks[] = {
    CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, CLOCK_BOOTTIME, CLOCK_TAI, 99, -1};
#define CLOCKS (sizeof clocks / sizeof *clocks)

// Runs f(arg) on a thread of its own, and waits for its end.
static inline void elsewhere(void* (*f)(void*), void* arg) {
  pthread_t t;
  assert(pthread_create(&t, NULL, f, arg) == 0 && pthread_join(t, NULL) == 0);
}

static inline void* no_work(void* p) { return p; }

// A thread that does one thing, waits until the test lets it go on, and does another one.
struct helper {
  void (*first)(void*);
  void (*last)(void*);
  void* arg;
  sem_t done, go;
  pthread_t thread;
};
static inline void* helper_main(void* p) {
  struct helper* h = p;
  if (h->first) h->first(h->arg);
  sem_post(&h->done);
  while (sem_wait(&h->go) != 0) {
  }
  if (h->last) h->last(h->arg);
  return p;
}
static inline void helper_start(struct helper* h, void (*first)(void*), void (*last)(void*), void* arg) {
  *h = (struct helper){first, last, arg};
  sem_init(&h->done, 0, 0);
  sem_init(&h->go, 0, 0);
  assert(pthread_create(&h->thread, NULL, helper_main, h) == 0);
  while (sem_wait(&h->done) != 0) {
  }
}
static inline void helper_end(struct helper* h) {
  sem_post(&h->go);
  assert(pthread_join(h->thread, NULL) == 0);
}

// Runs f in a process of its own, since f leaves things behind. That process has made a thread before.
static inline void in_child(void (*f)(void)) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    elsewhere(no_work, NULL);
    f();
    fflush(stdout);
    _exit(0);
  }
  int status;
  while (waitpid(pid, &status, 0) != pid) {
  }
  if (status) printf("ended with %#x\n", status);
}

static void cases(void);
static inline void* cases_main(void* p) {
  cases();
  return p;
}
static sem_t detached_done;
static inline void* cases_detached(void* p) {
  cases();
  sem_post(&detached_done);
  return p;
}
int main() {
  setvbuf(stdout, NULL, _IOLBF, 1 << 16);
  printf("== main, before the first thread\n");
  cases();
  printf("== main\n");
  elsewhere(no_work, NULL);
  cases();
  printf("== thread\n");
  elsewhere(cases_main, NULL);
  printf("== detached thread\n");
  sem_init(&detached_done, 0, 0);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_t t;
  assert(pthread_create(&t, &attr, cases_detached, NULL) == 0);
  while (sem_wait(&detached_done) != 0) {
  }
  return 0;
}
