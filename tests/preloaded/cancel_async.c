// SPDX-License-Identifier: MIT
// Asynchronous cancellation, which stops a thread at any instruction; and cleanup handlers in C.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char story[4096];
static void tell(const char* s) { strcat(strcat(story, " "), s); }
static void tells(void* s) { tell(s); }

static volatile int ready, go;
static volatile unsigned long counted;

static void* busy_loop(void* p) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  pthread_cleanup_push(tells, "handler");
  ready = 1;
  for (;;) counted++;
  pthread_cleanup_pop(0);
}
// Compilers warn of a recursion from which no path returns. They cannot know that this is always true.
static volatile int always = 1;
static char* const levels[] = {"c0", "c1", "c2"};
static __attribute__((noinline)) void nested(int n) {
  pthread_cleanup_push(tells, levels[n]);
  if (n) nested(n - 1);
  ready = 1;
  while (always) counted++;
  pthread_cleanup_pop(0);
}
static void* busy_nested(void* p) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  nested(2);
  return NULL;
}
static void* busy_floating(void* p) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  volatile double x = 1;
  pthread_cleanup_push(tells, "handler");
  ready = 1;
  for (;;) x = x * 1.0000001 + 0.5;
  pthread_cleanup_pop(0);
}
static void* disabled(void* p) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
  ready = 1;
  while (!go) {
  }
  for (int i = 0; i < 1000; i++) counted++;
  tell("still here");
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
  tell("not here");
  return NULL;
}
static void* deferred_first(void* p) {
  ready = 1;
  while (!go) {
  }
  tell("still here");
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  tell("not here");
  return NULL;
}
static void* itself(void* p) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  pthread_cleanup_push(tells, "handler");
  pthread_cancel(pthread_self());
  tell("not here");
  pthread_cleanup_pop(0);
  return NULL;
}
static void* in_pause(void* p) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  pthread_cleanup_push(tells, "handler");
  ready = 1;
  for (;;) pause();
  pthread_cleanup_pop(0);
}
static void* in_barrier(void* p) {
  static pthread_barrier_t b;
  pthread_barrier_init(&b, NULL, 2);
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  pthread_cleanup_push(tells, "handler");
  ready = 1;
  pthread_barrier_wait(&b);
  tell("not here");
  pthread_cleanup_pop(0);
  return NULL;
}
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static void* in_mutex_lock(void* p) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  pthread_cleanup_push(tells, "handler");
  ready = 1;
  pthread_mutex_lock(&held);
  tell("not here");
  pthread_cleanup_pop(0);
  return NULL;
}
static void* in_rwlock(void* p) {
  static pthread_rwlock_t l = PTHREAD_RWLOCK_INITIALIZER;
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  pthread_cleanup_push(tells, "handler");
  pthread_rwlock_wrlock(&l);
  ready = 1;
  pthread_rwlock_rdlock(&l);
  for (;;) pthread_testcancel();
  pthread_cleanup_pop(0);
  return NULL;
}
// Calls by number are no cancellation points. But a thread that may be cancelled anywhere can be cancelled there.
static int by_number;
static void* in_syscall(void* p) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  pthread_cleanup_push(tells, "handler");
  static int word, shared_word;
  int fds[2];
  struct timespec long_time = {1000, 0};
  char c;
  unsigned long none = 0;
  pipe(fds);
  ready = 1;
  switch (by_number) {
    case 0: syscall(SYS_read, fds[0], &c, 1); break;
    case 1: syscall(SYS_futex, &word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, NULL, NULL, 0); break;
    case 2: syscall(SYS_futex, &shared_word, FUTEX_WAIT, 0, NULL, NULL, 0); break;
    case 3: syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &long_time, NULL); break;
    case 4: syscall(SYS_rt_sigsuspend, &none, 8); break;
    case 5: syscall(SYS_ppoll, NULL, 0, NULL, NULL, 8L); break;
    case 6: syscall(SYS_epoll_pwait, epoll_create1(0), (char[32]){0}, 1, -1, NULL, 8L); break;
    case 7:
      for (;;) syscall(SYS_getppid);
    case 8: syscall(SYS_waitid, P_ALL, 0, NULL, WEXITED, NULL); break;
  }
  tell("not here");
  pthread_cleanup_pop(0);
  return NULL;
}
static void* not_a_point(void* p) {
  pthread_cleanup_push(tells, "handler");
  struct timespec t = {0, 20000000};
  ready = 1;
  while (!go) syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &t, NULL);
  syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &t, NULL);
  tell("still here");
  pthread_testcancel();
  pthread_cleanup_pop(0);
  return NULL;
}
static void* yields(void* p) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  pthread_cleanup_push(tells, "handler");
  ready = 1;
  for (;;) sched_yield();
  pthread_cleanup_pop(0);
}
static void* while_others_spin(void* p) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  ready = 1;
  for (;;) counted++;
  return p;
}

// ---- handlers in C, deferred ----

static void* popped(void* p) {
  pthread_cleanup_push(tells, "one");
  pthread_cleanup_push(tells, "two");
  pthread_cleanup_push(tells, "three");
  pthread_cleanup_pop(0);
  pthread_cleanup_pop(1);
  pthread_exit((void*)4);
  pthread_cleanup_pop(0);
}
static __attribute__((noinline)) void frames(int n) {
  pthread_cleanup_push(tells, levels[n]);
  if (n) frames(n - 1);
  else if (always) pthread_exit((void*)42);
  pthread_cleanup_pop(0);
}
static void* exits_from_frames(void* p) {
  frames(2);
  return NULL;
}
static void restore(void* p) {
  int old;
  pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &old);
  tell(old == PTHREAD_CANCEL_DEFERRED ? "deferred" : "asynchronous");
}
static void* defer_np(void* p) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  pthread_cleanup_push_defer_np(restore, NULL);
  pthread_cleanup_pop_restore_np(1);
  int old;
  pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &old);
  tell(old == PTHREAD_CANCEL_DEFERRED ? "deferred" : "asynchronous");
  ready = 1;
  for (;;) pause();
}
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static void unlock(void* p) { tell(pthread_mutex_unlock(p) == 0 ? "unlocked" : "was not locked"); }
static void* in_cond_wait(void* p) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK);
  static pthread_mutex_t checked;
  pthread_mutex_init(&checked, &a);
  pthread_mutex_lock(&checked);
  pthread_cleanup_push(unlock, &checked);
  ready = 1;
  for (;;) pthread_cond_wait(&c, &checked);
  pthread_cleanup_pop(0);
}

static const char* end_of(pthread_t t) {
  static char text[64];
  void* r = NULL;
  struct timespec bound;
  clock_gettime(CLOCK_REALTIME, &bound);
  bound.tv_sec += 30;
  int e = pthread_timedjoin_np(t, &r, &bound);
  if (e) sprintf(text, "join: %s", strerror(e));
  else if (r == PTHREAD_CANCELED) strcpy(text, "cancelled");
  else sprintf(text, "%ld", (long)r);
  return text;
}

static void run(const char* name, void* (*f)(void*), int cancel) {
  pthread_t t;
  ready = go = *story = 0;
  assert(pthread_create(&t, NULL, f, NULL) == 0);
  printf("%s:", name);
  if (cancel) {
    while (!ready) usleep(100);
    usleep(1000);
    printf(" cancel %d,", pthread_cancel(t));
    go = 1;
  }
  printf(" %s,", end_of(t));
  printf("%s\n", story);
  fflush(stdout);
}

int main() {
  run("busy loop", busy_loop, 1);
  run("busy in nested frames", busy_nested, 1);
  run("busy with floating point", busy_floating, 1);
  run("disabled", disabled, 1);
  run("deferred first", deferred_first, 1);
  run("itself", itself, 0);
  run("in pause", in_pause, 1);
  run("in a barrier", in_barrier, 1);
  pthread_mutex_lock(&held);
  run("in a mutex", in_mutex_lock, 1);
  pthread_mutex_unlock(&held);
  run("at a lock that it holds", in_rwlock, 1);
  run("yields", yields, 1);
  for (by_number = 0; by_number < 8; by_number++) {
    char name[32];
    sprintf(name, "system call %d", by_number);
    run(name, in_syscall, 1);
  }
  pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  run("system call 8", in_syscall, 1);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  run("no point", not_a_point, 1);
  run("popped", popped, 0);
  run("exit from frames", exits_from_frames, 0);
  run("defer_np", defer_np, 1);
  run("in a condition variable", in_cond_wait, 1);
  // Many threads spin, more than there are CPUs.
  pthread_t t[40];
  int n = 0;
  for (int i = 0; i < 40; i++) pthread_create(&t[i], NULL, while_others_spin, NULL);
  for (int i = 0; i < 40; i++) pthread_cancel(t[i]);
  for (int i = 0; i < 40; i++) n += !strcmp(end_of(t[i]), "cancelled");
  printf("spinners: %d\n", n);
  return 0;
}
