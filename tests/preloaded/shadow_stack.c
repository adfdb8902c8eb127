// SPDX-License-Identifier: MIT
// expect: preloaded only
// Threads of a process that has shadow stacks stay libc's, and one line says so. Another process answers here for the kernel. A filter asks
// that process, which answers like a kernel with shadow stacks.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { kCall = SYS_arch_prctl, kQuestion = 0x5005 };  // ARCH_SHSTK_STATUS
#else
enum { kCall = SYS_prctl, kQuestion = 74 };  // PR_GET_SHADOW_STACK_STATUS
#endif

static void answer(int listener) {
  for (;;) {
    struct seccomp_notif asked;
    memset(&asked, 0, sizeof asked);
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked)) {
      if (errno == EINTR) continue;
      _exit(0);  // the asking process has ended
    }
    uint64_t on = 1;
    struct iovec here = {&on, sizeof on}, there = {(void*)(uintptr_t)asked.data.args[1], sizeof on};
    int written = process_vm_writev((pid_t)asked.pid, &here, 1, &there, 1, 0) == sizeof on;
    struct seccomp_notif_resp answered = {.id = asked.id, .error = written ? 0 : -EINVAL};
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answered);
  }
}

static void* adds(void* p) { return (char*)p + 1; }

int main(int argc, char** argv) {
  if (argc > 1) {
    void* n = NULL;
    char said[1000] = "";
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    for (int i = 0; i < 10; i++) {
      pthread_t t;
      if (pthread_create(&t, NULL, adds, n) || pthread_join(t, &n)) return 1;
    }
    if (pread(2, said, sizeof said - 1, 0) < 0) return 1;
    int told = strstr(said, "threads are NPTL's: they have shadow stacks") != NULL;
    printf("%ld added, %s\n", (long)n, told ? "by libc's threads" : said);
    return !told;
  }
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kCall, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kQuestion, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog filter = {sizeof code / sizeof *code, code};
  int tell[2], listener = -1;
  FILE* errors = tmpfile();
  if (pipe(tell) || !errors) return 1;
  // The child shares the table of descriptors until this process calls exec, so it has the listener as well.
  if (syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0) == 0) {
    if (read(tell[0], &listener, sizeof listener) == sizeof listener && listener >= 0) answer(listener);
    _exit(0);
  }
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
    listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
  if (write(tell[1], &listener, sizeof listener) != sizeof listener) return 1;
  if (listener < 0) return puts("the kernel has no such filters"), 0;
  setenv("FIBERTHREAD_VERBOSE", "1", 1);
  dup2(fileno(errors), 2);
  execl("/proc/self/exe", argv[0], "asked", (char*)NULL);
  return 1;
}
