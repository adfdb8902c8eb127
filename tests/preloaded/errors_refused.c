// SPDX-License-Identifier: MIT
// Errors that a kernel gives only when it lacks something. A filter of system calls returns them instead.
#include "errors.h"

#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/select.h>

extern pid_t _Fork(void), __vfork(void);
extern int __ppoll_chk(struct pollfd*, nfds_t, const struct timespec*, const sigset_t*, size_t);

// Makes these calls fail from now on, in all threads of the process.
struct refusal {
  int call, error;
};
static void refuse(const struct refusal* r, int n) {
  struct sock_filter code[64] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
  int k = 1;
  for (int i = 0; i < n; i++) {
    code[k++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, r[i].call, 0, 1);
    code[k++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | r[i].error);
  }
  code[k++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog program = {k, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
    printf("no filter: %s\n", strerrorname_np(errno));
}
#define REFUSE(...) refuse((struct refusal[]){__VA_ARGS__}, sizeof((struct refusal[]){__VA_ARGS__}) / sizeof(struct refusal))

static void no_memory(void) {
  gid_t groups[2] = {1, 2};
  struct timespec zero = {0, 0};
  struct pollfd p = {-1, POLLIN};
  REFUSE({SYS_clone, ENOMEM}, {SYS_clone3, ENOMEM},
#ifdef SYS_vfork
         {SYS_vfork, ENOMEM}, {SYS_fork, ENOMEM}, {SYS_poll, ENOMEM}, {SYS_select, ENOMEM},
#endif
         {SYS_ppoll, ENOMEM}, {SYS_pselect6, ENOMEM}, {SYS_setgroups, ENOMEM});
  FAILS("no memory", fork);
  FAILS("no memory", _Fork);
  FAILS("no memory", vfork);
  FAILS("no memory", __vfork);
  FAILS("no memory", setgroups, 2, groups);
  FAILS("no memory", ppoll, &p, 1, &zero, NULL);
  FAILS("no memory", __ppoll_chk, &p, 1, &zero, NULL, sizeof p);
  FAILS("no memory", pselect, 0, NULL, NULL, NULL, &zero, NULL);
  // The program goes on.
  p = (struct pollfd){-1, POLLIN};
  sem_t s;
  sem_init(&s, 0, 1);
  FAILS("there", sem_wait, &s);
}

static void no_users(void) {
  REFUSE({SYS_setuid, EAGAIN}, {SYS_setreuid, EAGAIN}, {SYS_setresuid, EAGAIN}, {SYS_setregid, EINVAL}, {SYS_setresgid, EINVAL});
  FAILS("too many processes of that user", setuid, 1);
  FAILS("too many processes of that user", setreuid, 1, 1);
  FAILS("too many processes of that user", setresuid, 1, 1, 1);
  FAILS("not in this namespace", setregid, 1, 1);
  FAILS("not in this namespace", setresgid, 1, 1, 1);
  printf("still %d\n", getuid() == geteuid());
}
static void other_users(void) {
  REFUSE({SYS_setreuid, EINVAL}, {SYS_setresuid, EINVAL});
  FAILS("not in this namespace", setreuid, 1, 1);
  FAILS("not in this namespace", setresuid, 1, 1, 1);
}

static void no_files(void) {
  REFUSE({SYS_openat, ENFILE},
#ifdef SYS_link
         {SYS_link, ENFILE},
#endif
         {SYS_linkat, ENFILE});
  show("sem_open", "no files in the system", sem_open("/new-errors_refused", O_CREAT, 0600, 1) == SEM_FAILED ? errno : 0);
}

static void cases(void) {
  in_child(no_memory);
  in_child(no_users);
  in_child(other_users);
  in_child(no_files);
}
