// SPDX-License-Identifier: MIT
// What the programs about processes have in common: children, and parts that each run in a process of their own.
#pragma once
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

extern char** environ;

inline int status_of(pid_t pid) {
  int status = -1;
  pid_t r;
  do r = waitpid(pid, &status, 0);
  while (r < 0 && errno == EINTR);
  return r == pid ? status : -2;
}

inline int in_child(int (*f)()) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    _exit(f());
  }
  return status_of(pid);
}

constexpr int kChildLimit = 10'000;  // ms, after which a child hangs

// Returns the status of a child, or 9 if the child hangs. Its signals may be blocked then, so an alarm would not end it.
inline int status_within_limit(pid_t pid) {
  int status;
  for (int i = 0; i < kChildLimit; i++) {
    if (waitpid(pid, &status, WNOHANG) == pid) return status;
    usleep(1000);
  }
  kill(pid, SIGKILL);
  return status_of(pid);
}

// Runs `body` in a child of fork().
template <class F>
int status_of_fork(F body) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) _exit(body());
  return status_within_limit(pid);
}

// Runs f in a thread.
template <class F>
void in_thread(F f) {
  std::thread(f).join();
}

inline void spawn(const char* command, int* status) {
  const char* argv[] = {"sh", "-c", command, nullptr};
  pid_t pid;
  int e = posix_spawn(&pid, "/bin/sh", nullptr, nullptr, (char**)argv, environ);
  *status = e ? -e : status_of(pid);
}

struct Part {
  const char* name;
  int (*run)();
};

// Runs all parts, or the one that is named.
template <int n>
int run_parts(const Part (&parts)[n], const char* named) {
  setenv("LC_ALL", "C", 1);
  // The program that started this one may ignore libc's own two signals, and children see what libc made of that.
  for (int sig = 32; sig <= 33; sig++) {
    unsigned long default_action[4] = {};
    syscall(SYS_rt_sigaction, sig, default_action, nullptr, 8);
  }
  for (auto& part : parts) {
    if (named && strcmp(named, part.name) != 0) continue;
    printf("-- %s\n", part.name);
    fflush(stdout);
    // Runs each part in a process of its own, in which threads have been made.
    pid_t pid = fork();
    if (pid == 0) {
      alarm(100);
      std::thread([] {}).join();
      part.run();
      fflush(stdout);
      _exit(0);
    }
    int s = status_of(pid);
    if (s) printf("%s: ended with %#x\n", part.name, s);
    fflush(stdout);
  }
  return 0;
}
