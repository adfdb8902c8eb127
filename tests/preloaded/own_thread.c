// SPDX-License-Identifier: MIT
// What the kernel keeps for each thread separately stays that thread's: file-system ids, an unshared working directory, flags of prctl, ids
// set by number. Threads made by such a thread inherit it, and others do not have it.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_barrier_t barrier;
static char secret[64];

// Moves to another worker, if it can.
static void move_on(void) {
  for (int i = 0; i < 20; i++) {
    sched_yield();
    if (i % 5 == 0) usleep(50);
  }
}

// Returns a sum. 1: it may read root's file. 2: it is in the root directory. 4: it may gain no privileges. 8: it has the timer slack that
// was set. 16: it is another user's.
static int what_it_has(void) {
  int has = 0;
  char cwd[256];
  move_on();
  int fd = open(secret, O_RDONLY);
  if (fd >= 0) has |= 1, close(fd);
  move_on();
  if (getcwd(cwd, sizeof cwd) && strcmp(cwd, "/") == 0) has |= 2;
  move_on();
  if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1) has |= 4;
  move_on();
  if (prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0) == 77777) has |= 8;
  move_on();
  if (syscall(SYS_geteuid) == 65534) has |= 16;
  return has;
}
static void* inherits(void* p) { return (void*)(long)what_it_has(); }

static void* changes(void* p) {
  switch ((long)p) {
    case 0: setfsuid(65534); break;
    case 1: syscall(SYS_setfsuid, 65534); break;
    case 2: assert(unshare(CLONE_FS) == 0 && chdir("/") == 0); break;
    case 3: assert(syscall(SYS_unshare, CLONE_FS) == 0 && chdir("/") == 0); break;
    case 4: assert(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0); break;
    case 5: assert(prctl(PR_SET_TIMERSLACK, 77777, 0, 0, 0) == 0); break;
    case 6: assert(syscall(SYS_setresuid, -1, 65534, -1) == 0); break;
    case 7: {  // loses the capability to read others' files
      struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
      struct __user_cap_data_struct d[2];
      extern int capget(void*, void*), capset(void*, void*);
      assert(capget(&h, d) == 0);
      d[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
      assert(capset(&h, d) == 0);
      break;
    }
  }
  pthread_barrier_wait(&barrier);
  int has = what_it_has();
  pthread_t t;
  void* r;
  pthread_create(&t, NULL, inherits, NULL);
  pthread_join(t, &r);
  pthread_barrier_wait(&barrier);
  return (void*)(long)(has | (int)(long)r << 8);
}
static void* changes_nothing(void* p) {
  pthread_barrier_wait(&barrier);
  int has = what_it_has();
  pthread_barrier_wait(&barrier);
  return (void*)(long)has;
}

// The tracer is a thread, and each of its requests must come from that thread.
static void* traces(void* p) {
  int right = ptrace(PTRACE_CONT, 0x3fffffff, NULL, NULL) == -1;  // from here on the fiber has its own kernel thread, and forks there
  for (int i = 0; i < 5; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      ptrace(PTRACE_TRACEME, 0, NULL, NULL);
      raise(SIGSTOP);
      _exit(7);
    }
    int status;
    move_on();
    if (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
      move_on();
      right += ptrace(PTRACE_CONT, pid, NULL, NULL) == 0;
      right += waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7;
    }
  }
  return (void*)(long)right;
}

int main() {
  pthread_t t[12];
  void* r;
  umask(0);
  snprintf(secret, sizeof secret, "%s/own_thread-%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", getpid());
  close(open(secret, O_CREAT | O_WRONLY, 0));  // even its owner may read it only by capabilities
  chown(secret, 1, 1);
  pthread_barrier_init(&barrier, NULL, 13);
  for (long i = 0; i < 8; i++) pthread_create(&t[i], NULL, changes, (void*)i);
  for (int i = 8; i < 12; i++) pthread_create(&t[i], NULL, changes_nothing, NULL);
  pthread_barrier_wait(&barrier);
  int mine = what_it_has();
  pthread_barrier_wait(&barrier);
  for (int i = 0; i < 12; i++) {
    pthread_join(t[i], &r);
    printf("thread %d: %#lx\n", i, (long)r);
  }
  printf("main: %#x, later %#x\n", mine, what_it_has());
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, traces, NULL);
  for (int i = 0; i < 4; i++) pthread_join(t[i], &r), printf("traced: %ld\n", (long)r);
  unlink(secret);
  return 0;
}
