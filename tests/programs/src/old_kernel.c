// SPDX-License-Identifier: MIT
// old_kernel ANSWER NAME… -- COMMAND…: runs the command under a filter that answers these calls with ENOSYS, with EPERM, or as Linux 5.10
// does (510), or kills the process for them (KILL).
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// Calls are given by number if they may be newer than the headers. If `argument` < 0, the call is refused with any arguments. Otherwise it
// is refused if one of `bits` is set in that argument, or, without bits, if the argument is `value`.
static const struct Call {
  const char* name;
  int number, argument;
  unsigned bits, value;
  int in_5_10;  // errno in Linux 5.10, 0 if that has the call
} calls[] = {
    {"guard", SYS_madvise, 2, 0, 102, EINVAL},    // MADV_GUARD_INSTALL
    {"guard", SYS_madvise, 2, 0, 103, EINVAL},    // MADV_GUARD_REMOVE
    {"populate", SYS_madvise, 2, 0, 23, EINVAL},  // MADV_POPULATE_WRITE
    {"readahead", SYS_readahead, -1, 0, 0, 0},
    {"epoll_pwait2", 441, -1, 0, 0, ENOSYS},
    {"membarrier", SYS_membarrier, -1, 0, 0, 0},
    {"nowait", SYS_preadv2, 5, 8, 0, EOPNOTSUPP},
    {"nowait", SYS_pwritev2, 5, 8, 0, EOPNOTSUPP},
    {"io_uring", 425, -1, 0, 0, 0},
    {"io_uring", 426, -1, 0, 0, 0},
    {"io_uring", 427, -1, 0, 0, 0},
    {"clone3", 435, -1, 0, 0, 0},
    {"close_range", 436, -1, 0, 0, 0},
    {"rseq", SYS_rseq, -1, 0, 0, 0},
    {"perf_event_open", SYS_perf_event_open, -1, 0, 0, 0},
    {"cancel_on_set", SYS_timerfd_settime, 1, 2, 0, 0},
    {"timerfd", SYS_timerfd_create, -1, 0, 0, 0},
    {"pidfd", 434, -1, 0, 0, 0},
    {"pidfd", 438, -1, 0, 0, 0},
    {"pidfd", 424, -1, 0, 0, 0},
    {"timer", SYS_timer_create, -1, 0, 0, 0},
};
enum { kCalls = sizeof calls / sizeof *calls };

int main(int argc, char** argv) {
  static struct sock_filter code[4 + 5 * kCalls];
  unsigned n = 0;
  if (argc < 4) return 2;
  int answer = !strcmp(argv[1], "EPERM") ? EPERM : !strcmp(argv[1], "510") ? 0 : ENOSYS, command = 2;
  int kills = !strcmp(argv[1], "KILL");
  while (argv[command] && strcmp(argv[command], "--")) command++;
  if (!argv[command] || !argv[command + 1]) return 2;
  for (int a = 2; a < command; a++) {
    int known = 0;
    for (int i = 0; i < kCalls; i++) {
      const struct Call* c = &calls[i];
      int is = !strcmp(argv[a], "all") || !strcmp(argv[a], c->name), error = answer ? answer : c->in_5_10;
      known |= is;
      if (!is || !error) continue;
      int more = c->argument < 0 ? 0 : 2;
      code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
      code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)c->number, 0, 1 + more);
      if (more) {
        code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * c->argument);
        code[n++] = c->bits ? (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, c->bits, 0, 1)
                            : (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, c->value, 0, 1);
      }
      code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, kills ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | (unsigned)error);
    }
    if (!known) {
      fprintf(stderr, "no such call: %s\n", argv[a]);
      return 2;
    }
  }
  code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog program = {(unsigned short)n, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
    perror("no filter");
    return 77;
  }
  execvp(argv[command + 1], argv + command + 1);
  perror(argv[command + 1]);
  return 127;
}
