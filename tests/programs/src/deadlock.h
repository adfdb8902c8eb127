// SPDX-License-Identifier: MIT
// What deadlock.c and no_deadlock.c share: locks, named threads, and a process that does something later.
#pragma once
#define _GNU_SOURCE
#include <aio.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kQuietUs = 300000 };

static pthread_mutex_t m[4] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static sem_t s;
static pthread_t t[200];
static volatile long tid[200];

static inline void quiet(void) { usleep(kQuietUs); }
static inline pthread_t start(void* (*f)(void*), long arg) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, f, (void*)arg)) abort();
  return thread;
}
static inline void named(long i) {
  char name[] = {(char)('a' + i), 0};
  pthread_setname_np(pthread_self(), name);
  tid[i] = gettid();
}
// Gives the caller a set of CPUs of its own, and so a kernel thread of its own.
static inline void bind_to_cpu(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set)) abort();
  for (int i = 0, first = 1; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &set) && !first) CPU_CLR(i, &set);
    else if (CPU_ISSET(i, &set)) first = 0;
  if (pthread_setaffinity_np(pthread_self(), sizeof set, &set)) abort();
}
static inline void* wait_sem(void* p) {
  while (sem_wait(&s)) {
  }
  return NULL;
}

static inline void* wait_cond(void* p) {
  pthread_mutex_lock(&m[0]);
  named((long)p);
  for (;;) pthread_cond_wait(&c, &m[0]);
}

// Starts a process that does something after a while. Called before there are threads.
static inline pid_t later(void (*f)(void*), void* p) {
  pid_t pid = fork();
  if (pid) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  quiet();
  f(p);
  _exit(0);
}
static inline void write_byte(void* fd) { write((int)(long)fd, "x", 1); }

struct named_case {
  const char* name;
  void (*f)(void);
};
// Runs the case that the first argument names. Without an argument, prints all names.
static inline int run_case(const struct named_case* cases, size_t n, int argc, char** argv) {
  for (size_t i = 0; i < n; i++)
    if (argc < 2) puts(cases[i].name);
    else if (!strcmp(argv[1], cases[i].name)) {
      cases[i].f();
      return 0;
    }
  return argc > 1;
}
