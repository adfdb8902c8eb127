// SPDX-License-Identifier: MIT
// service_filter PROGRAM ARGUMENTS…: executes a program under a filter that ends it if it calls sched_setaffinity(), as filters of services do.
// service_filter threads: makes threads, each while its maker goes on.
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_int ran;
static void* run(void* p) {
  ran++;
  return p;
}

static int threads(void) {
  for (int i = 0; i < 200; i++) {
    pthread_t t;
    if (pthread_create(&t, NULL, run, NULL)) return 1;
    while (ran <= i) {
    }
    pthread_join(t, NULL);
    nanosleep(&(struct timespec){0, 500000}, NULL);  // idle workers fall asleep, and their CPUs
  }
  printf("%d threads ran\n", ran);
  return 0;
}

int main(int argc, char** argv) {
  if (argc == 2 && !strcmp(argv[1], "threads")) return threads();
  static struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_setaffinity, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 77;
  execvp(argv[1], argv + 1);
  return 1;
}
