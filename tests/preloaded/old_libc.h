// SPDX-License-Identifier: MIT
// Functions that glibc 2.34 lacks. There they are the system call, as programs for 2.34 have to write it.
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if !__GLIBC_PREREQ(2, 35)
static int epoll_pwait2(int epoll, struct epoll_event* events, int most, const struct timespec* time, const sigset_t* mask) {
  return syscall(SYS_epoll_pwait2, epoll, events, most, time, mask, 8);
}
#endif
enum { kEpollPwait2Cancels = __GLIBC_PREREQ(2, 35) };  // syscall() is no cancellation point
