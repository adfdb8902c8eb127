// SPDX-License-Identifier: MIT
// The set*id family changes every kernel thread, whichever thread calls, and whatever the others do meanwhile.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kThreads = 20 };
static volatile int stop;
static int fd[2];

static void check(uid_t uid) {
  uid_t r, e, s;
  assert(syscall(SYS_getresuid, &r, &e, &s) == 0 && r == uid && e == uid && s == uid);
}

static void* blocked(void* p) {
  char c;
  assert(read(fd[0], &c, 1) == 1);
  check(1000);
  return p;
}
static void* spinning(void* p) {
  while (!stop) {
  }
  check(1000);
  return p;
}
static void* yielding(void* p) {
  while (!stop) sched_yield();
  check(1000);
  return p;
}
static void* changing(void* p) {
  gid_t groups[2] = {1000, 1001};
  assert(setgroups(2, groups) == 0);
  assert(getgroups(0, NULL) == 2);
  assert(setresgid(1000, 1000, 1000) == 0);
  assert(setresuid(1000, 1000, 1000) == 0);
  check(1000);
  errno = 0;
  assert(setuid(0) == -1 && errno == EPERM);
  assert(seteuid(1000) == 0 && setreuid(-1, 1000) == 0);
  // Only in these two calls, -1 does not mean "unchanged".
  assert(seteuid(-1) == -1 && errno == EINVAL && setegid(-1) == -1 && errno == EINVAL);
  return p;
}

static void run(void) {
  pthread_t t[3 * kThreads], c;
  for (int i = 0; i < kThreads; i++) {
    pthread_create(&t[3 * i], NULL, blocked, NULL);
    pthread_create(&t[3 * i + 1], NULL, i < 3 ? spinning : yielding, NULL);
    pthread_create(&t[3 * i + 2], NULL, yielding, NULL);
  }
  pthread_create(&c, NULL, changing, NULL);
  pthread_join(c, NULL);
  check(1000);
  stop = 1;
  char bytes[kThreads] = "";
  assert(write(fd[1], bytes, kThreads) == kThreads);
  for (int i = 0; i < 3 * kThreads; i++) pthread_join(t[i], NULL);
}

int main() {
  if (getuid() != 0) {
    puts("needs root");
    return 0;
  }
  assert(pipe(fd) == 0);
  for (int round = 0; round < 3; round++) {
    pid_t child = fork();
    if (child == 0) {
      run();
      _exit(0);
    }
    int status;
    assert(waitpid(child, &status, 0) == child);
    printf("round %d: %#x\n", round, status);
  }
  // The same when threads exist already.
  run();
  puts("ok");
  return 0;
}
