// SPDX-License-Identifier: MIT
// container_filter COMMAND…: runs the command under the filter that Docker, containerd and Podman give a container without further rights: the
// default profile of github.com/moby/profiles, of 2026-06-30, which the others have taken over. It lists what is allowed; here is the rest.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// By number if they may be newer than the headers.
static const unsigned refused[] = {
    SYS_acct,
    SYS_add_key,
    SYS_bpf,
    SYS_chroot,
    SYS_clock_settime,
    SYS_delete_module,
    SYS_fanotify_init,
    SYS_finit_module,
    SYS_get_mempolicy,
    SYS_init_module,
    SYS_kcmp,
    SYS_kexec_load,
    SYS_keyctl,
    SYS_mbind,
    SYS_migrate_pages,
    SYS_mount,
    SYS_move_pages,
    SYS_open_by_handle_at,
    SYS_perf_event_open,
    SYS_pivot_root,
    SYS_quotactl,
    SYS_reboot,
    SYS_request_key,
    SYS_set_mempolicy,
    SYS_setdomainname,
    SYS_sethostname,
    SYS_setns,
    SYS_settimeofday,
    SYS_swapoff,
    SYS_swapon,
    SYS_syslog,
    SYS_umount2,
    SYS_unshare,
    SYS_userfaultfd,
    SYS_vhangup,
#ifdef __x86_64__
    SYS_create_module,
    SYS_get_kernel_syms,
    SYS_ioperm,
    SYS_iopl,
    SYS_query_module,
    SYS_sysfs,
    SYS_uselib,
    SYS_ustat,
    SYS__sysctl,
#endif
    425,
    426,
    427,  // io_uring_setup, io_uring_enter, io_uring_register
    428,
    429,
    430,
    431,
    432,  // open_tree, move_mount, fsopen, fsconfig, fsmount
    433,
    438,
    440,
    442,
    443,  // fspick, pidfd_getfd, process_madvise, mount_setattr, quotactl_fd
    450,  // set_mempolicy_home_node
};
enum { kRefused = sizeof refused / sizeof *refused };

#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define FIRST_ARGUMENT BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args))
#define RETURN(answer) BPF_STMT(BPF_RET | BPF_K, answer)
#define IF(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)

int main(int argc, char** argv) {
  static struct sock_filter code[32 + 2 * kRefused];
  unsigned n = 0;
  if (argc < 2) return 2;
  code[n++] = (struct sock_filter)NUMBER;
  for (int i = 0; i < kRefused; i++) {
    code[n++] = (struct sock_filter)IF(refused[i], 0, 1);
    code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ERRNO | EPERM);
  }
  code[n++] = (struct sock_filter)IF(435, 0, 1);  // clone3. libc takes clone() then.
  code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ERRNO | ENOSYS);
  code[n++] = (struct sock_filter)IF(SYS_clone, 0, 4);
  code[n++] = (struct sock_filter)FIRST_ARGUMENT;
  code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x7e020000, 0, 1);  // CLONE_NEW…
  code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ERRNO | EPERM);
  code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
  code[n++] = (struct sock_filter)IF(SYS_socket, 0, 5);
  code[n++] = (struct sock_filter)FIRST_ARGUMENT;
  code[n++] = (struct sock_filter)IF(38, 1, 0);  // AF_ALG
  code[n++] = (struct sock_filter)IF(40, 0, 1);  // AF_VSOCK
  code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ERRNO | EPERM);
  code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
  code[n++] = (struct sock_filter)IF(SYS_personality, 0, 4);
  code[n++] = (struct sock_filter)FIRST_ARGUMENT;
  code[n++] = (struct sock_filter)IF(0xffffffff, 2, 0);                                   // asks for the present one
  code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, ~0x20008u, 0, 1);  // any but PER_LINUX32 and UNAME26
  code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ERRNO | EPERM);
  code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
  struct sock_fprog program = {(unsigned short)n, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
    perror("no filter");
    return 77;
  }
  execvp(argv[1], argv + 1);
  perror(argv[1]);
  return 127;
}
