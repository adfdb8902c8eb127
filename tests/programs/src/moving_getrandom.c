// SPDX-License-Identifier: MIT
// A getrandom() during which the calling thread comes to another CPU. The kernel then writes into the thread's rseq area.
#define _GNU_SOURCE
#include <sched.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

ssize_t getrandom(void* to, size_t bytes, unsigned flags) {
  cpu_set_t all, other;
  unsigned here;
  if (syscall(SYS_sched_getaffinity, 0, sizeof all, &all) > 0 && syscall(SYS_getcpu, &here, NULL, NULL) == 0 && CPU_ISSET(here, &all)) {
    other = all;
    CPU_CLR(here, &other);
    syscall(SYS_sched_setaffinity, 0, sizeof other, &other);
    syscall(SYS_sched_setaffinity, 0, sizeof all, &all);
  }
  return syscall(SYS_getrandom, to, bytes, flags);
}
