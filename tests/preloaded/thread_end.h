// SPDX-License-Identifier: MIT
// What the tests of a thread's end share: cleanup handlers, objects and keys that note when they run, and a function that prints their
// order.
#pragma once
#include <assert.h>
#include <atomic>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// The names of what has run, in order.
inline char story[4096];
inline pthread_mutex_t story_mutex = PTHREAD_MUTEX_INITIALIZER;
inline void tell(const char* s) {
  int old;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
  pthread_mutex_lock(&story_mutex);
  strcat(story, " ");
  strcat(story, s);
  pthread_mutex_unlock(&story_mutex);
  pthread_setcancelstate(old, nullptr);
}
inline void tells(void* s) { tell(static_cast<const char*>(s)); }

struct Object {
  const char* name;
  explicit Object(const char* n) : name(n) {}
  ~Object() { tell(name); }
};
struct Local {
  const char* name = nullptr;
  ~Local() {
    if (name) tell(name);
  }
};
inline thread_local Local first, second;

inline std::atomic<int> ready, go;
inline void wait_for(std::atomic<int>& a, int n) {
  while (a.load() < n) usleep(100);
}

// Joins the thread, and returns its result as text.
inline const char* result_of(pthread_t t) {
  void* r = nullptr;
  timespec bound;
  clock_gettime(CLOCK_REALTIME, &bound);
  bound.tv_sec += 30;
  int e = pthread_timedjoin_np(t, &r, &bound);
  static char text[64];
  if (e) snprintf(text, sizeof text, "join: %s", strerror(e));
  else if (r == PTHREAD_CANCELED) snprintf(text, sizeof text, "cancelled");
  else snprintf(text, sizeof text, "%ld", (long)r);
  return text;
}

// Runs f(arg) in a thread, and prints how it has ended and its story. `cancel`: cancels the thread once it is ready.
inline void run(const char* name, void* (*f)(void*), bool cancel = false, void* arg = nullptr) {
  *story = 0;
  ready = go = 0;
  pthread_t t;
  assert(pthread_create(&t, nullptr, f, arg) == 0);
  if (cancel) {
    wait_for(ready, 1);
    printf("%s: cancel %d,", name, pthread_cancel(t));
    go = 1;
  } else {
    printf("%s:", name);
  }
  printf(" %s,", result_of(t));
  printf("%s\n", story);
  fflush(stdout);
}

// Runs f() in a child, and prints the child's status.
inline void in_child(const char* name, void (*f)()) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    int null = open("/dev/null", 1);
    dup2(null, 2);
    close(null);
    alarm(60);
    f();
    _exit(99);
  }
  int status;
  while (waitpid(pid, &status, 0) != pid) {
  }
  printf("%s: %#x\n", name, status & ~0x80);
}

// Three frames, each with an object and a cleanup handler; the innermost calls then().
[[gnu::noinline]] inline void deep(int n, void (*then)()) {
  Object o(n == 0 ? "d0" : n == 1 ? "d1" : "d2");
  pthread_cleanup_push(tells, (void*)(n == 0 ? "c0" : n == 1 ? "c1" : "c2"));
  if (n) deep(n - 1, then);
  else then();
  pthread_cleanup_pop(0);
}
