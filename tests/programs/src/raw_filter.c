// SPDX-License-Identifier: MIT
// raw_filter before|after: sets a filter that refuses arch_prctl(ARCH_SET_FS), by a system call instruction that no library can intercept,
// before the first thread or while there are threads.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void refuse(void) {
  static struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x1002, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  long r;
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  asm volatile("syscall"
               : "=a"(r)
               : "0"(SYS_seccomp), "D"(SECCOMP_SET_MODE_FILTER), "S"(SECCOMP_FILTER_FLAG_TSYNC), "d"(&program)
               : "rcx", "r11", "memory");
  if (r) printf("no filter: %ld\n", r);
}

static void* sleeps(void* p) {
  for (int i = 0; i < 20; i++) usleep(1000);
  return p;
}

int main(int argc, char** argv) {
  int before = argc > 1 && !strcmp(argv[1], "before");
  pthread_t t[4];
  if (before) refuse();
  for (long i = 0; i < 4; i++) pthread_create(&t[i], NULL, sleeps, (void*)i);
  if (!before) refuse();
  long sum = 0;
  for (int i = 0; i < 4; i++) {
    void* r;
    pthread_join(t[i], &r);
    sum += (long)r;
  }
  printf("joined, %ld\n", sum);
  return 0;
}
