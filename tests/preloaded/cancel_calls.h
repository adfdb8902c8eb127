// SPDX-License-Identifier: MIT
// What the tests that cancel threads in libc's own system calls share: pauses of any length, a child that runs until the end, files and
// queues, and counts of what a cancelled thread has cleaned up.
#pragma once
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "queues.h"

inline unsigned seed = 1;
inline unsigned any() { return (seed = seed * 1103515245 + 12345) >> 16; }
// Passes up to some microseconds, mostly few.
inline void pass_time() {
  for (unsigned i = any() % (1u << any() % 14); i--;) std::atomic_signal_fence(std::memory_order_seq_cst);
}

// Before 2.41, libc's asynchronous mode lets a request act after the call has ended, and the call's result is lost.
inline bool loses_results() {
  int major = 0, minor = 0;
  sscanf(gnu_get_libc_version(), "%d.%d", &major, &minor);
  return major == 2 && minor < 41;
}

inline int locked_file;
inline pid_t child;  // holds a lock on the first ten bytes of locked_file

inline timespec after(int seconds) {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_sec += seconds;
  return t;
}

inline void* result_of(pthread_t t) {
  void* r = nullptr;
  timespec bound = after(60);
  int e = pthread_timedjoin_np(t, &r, &bound);
  if (e) {
    printf("HANGS\n");
    fflush(stdout);
    kill(child, SIGKILL);
    _exit(1);
  }
  return r;
}

inline std::atomic<int> stage;  // 1: about to call, 2: the call has returned
inline std::atomic<int> cleaned, destroyed;
inline void wait_for_stage(int n) {
  while (stage < n) sched_yield();
}
inline void cleanup(void*) { cleaned++; }
struct Guard {
  ~Guard() { destroyed++; }
};

// Makes a directory and works in it: with a FIFO, a file that a child has locked, and queues. Takes the seed from the arguments.
inline void begin(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc > 1) seed = static_cast<unsigned>(atoi(argv[1]));
  char directory[] = "calls-XXXXXX";
  assert(mkdtemp(directory) && chdir(directory) == 0);
  assert(mkfifo("fifo", 0600) == 0);
  locked_file = open("locked", O_RDWR | O_CREAT, 0600);
  open_queues();
  int ready[2];
  assert(pipe(ready) == 0);
  pid_t parent = getpid();
  child = fork();
  if (child == 0) {
    struct flock l = {};
    l.l_type = F_WRLCK;
    l.l_len = 10;
    fcntl(locked_file, F_SETLK, &l);
    write(ready[1], "x", 1);
    while (getppid() == parent) sleep(1);
    _exit(0);
  }
  char c;
  read(ready[0], &c, 1);
}

// Ends the process. Threads may still wait.
[[noreturn]] inline void end() {
  kill(child, SIGKILL);
  remove_queues();
  fflush(stdout);
  _exit(0);
}
