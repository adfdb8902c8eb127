// SPDX-License-Identifier: MIT
// A seccomp filter, installed while there are threads, answers by SIGSYS to reads and writes without waiting (preadv2, pwritev2), and to
// clone() with other flags than libc's, as sandboxes do. Its handler writes a line for each call that the program has made, and there is
// none. A call that the program does make reaches the handler.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void on_trap(int sig, siginfo_t* info, void* context) {
  char line[64];
  (void)sig, (void)context;
  int n = snprintf(line, sizeof line, "trapped: %s\n", info->si_syscall == SYS_getpgid ? "getpgid" : "another");
  if (write(1, line, n) != n) _exit(9);
}

enum {
  kLibcsFlags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID |
                CLONE_CHILD_CLEARTID
};
static int ends[2], wires[2];
static void* echoes(void* p) {
  char c;
  while (read(ends[1], &c, 1) == 1 && write(ends[1], &c, 1) == 1) {
  }
  return p;
}
static void* copies(void* p) {
  char c[16];
  while (read(wires[0], c, sizeof c) > 0) {
  }
  return p;
}

// A read within libc takes a kernel thread, whether threads are fibers or not.
static atomic_int sleeping;
static void* sleeps(void* p) {
  atomic_fetch_add(&sleeping, 1);
  return (void*)(long)fgetc((FILE*)p);
}

enum { kSleepers = 20 };
int main() {
  static struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_preadv2, 6, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwritev2, 5, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 4, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kLibcsFlags, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
  };
  struct sock_fprog filter = {sizeof code / sizeof *code, code};
  struct sigaction sa;
  pthread_t t, u;
  memset(&sa, 0, sizeof sa);
  sa.sa_sigaction = on_trap;
  sa.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSYS, &sa, NULL);
  setvbuf(stdout, NULL, _IONBF, 0);
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || pipe(wires)) return 1;
  pthread_create(&t, NULL, echoes, NULL);
  pthread_create(&u, NULL, copies, NULL);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter)) {
    perror("no filter");
    return 1;
  }
  pthread_t sleeper[kSleepers];
  int held[kSleepers][2];
  for (int i = 0; i < kSleepers; i++) {
    if (pipe(held[i])) return 1;
    pthread_create(&sleeper[i], NULL, sleeps, fdopen(held[i][0], "r"));
  }
  while (sleeping < kSleepers) usleep(1000);
  int good = 0;
  for (int i = 0; i < 100; i++) {
    char c = 'x';
    good += write(ends[0], &c, 1) == 1 && read(ends[0], &c, 1) == 1;
    struct iovec v = {&c, 1};
    good += writev(wires[1], &v, 1) == 1;
  }
  printf("%d\n", good);
  errno = 0;
  getpgid(0);
  close(ends[0]);
  close(wires[1]);
  pthread_join(t, NULL);
  pthread_join(u, NULL);
  void* r;
  int sum = 0;
  for (int i = 0; i < kSleepers; i++)
    if (write(held[i][1], "x", 1) == 1 && pthread_join(sleeper[i], &r) == 0) sum += (long)r == 'x';
  printf("%d woken\n", sum);
  puts("over");
  return 0;
}
