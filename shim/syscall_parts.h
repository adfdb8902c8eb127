// SPDX-License-Identifier: MIT
// What the files of shim/syscall*.cpp share. `calls` has the system calls that mean something special on a fiber. Each takes the arguments
// of the kernel's call of that name, and returns what that would return. The caller is a fiber.
#pragma once
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>

#include "sched/preempt.h"
#include "sched/syscall.h"
#include "shim/cancel.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/user_memory.h"

namespace fiberthread {

// Keeps a call from being a cancellation point, since syscall() is none, whatever the call.
class NotCancelled {
 public:
  NotCancelled() : asynchronous_(cancel_is_asynchronous(self())) {
    if (!asynchronous_) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old_);
  }
  ~NotCancelled() {
    if (!asynchronous_) pthread_setcancelstate(old_, nullptr);
  }

 private:
  bool asynchronous_;
  int old_;
};

template <class Call>
long not_cancelled(Call call) {
  NotCancelled no;
  return kernel_result(call());
}

// Makes the kernel's call. A thread that may be cancelled anywhere makes it in libc, where it can be stopped.
inline long plain_call(long nr, long a, long b, long c, long d, long e, long f) {
  if (__builtin_expect(!cancel_is_asynchronous(self()), 1)) return program_syscall(nr, a, b, c, d, e, f);
  int error = errno;
  long r = REAL(syscall)(nr, a, b, c, d, e, f);
  if (r != -1) return r;
  r = -errno;
  errno = error;
  return r;
}

// Copies a signal mask in the kernel's form, of `size` bytes. Returns 0 or a negative errno value.
inline long copy_mask(const uint64_t* from, size_t size, sigset_t& set) {
  uint64_t mask;
  if (size != sizeof mask) return -EINVAL;
  if (!copy_user(&mask, from)) return -EFAULT;
  sigemptyset(&set);
  memcpy(&set, &mask, sizeof mask);  // the rest of the set is not the kernel's
  return 0;
}

// Returns the fiber with that tid. Null for other threads. Kernel threads that are not ours have tids of the kernel.
FiberRecord* scheduled_fiber(int tid);

// Linux' number of epoll_pwait2, which older headers lack.
constexpr long kEpollPwait2 = 441;

namespace calls {

// Threads and processes (syscall_threads.cpp; the four after gettid() in process.cpp).
long gettid();
long capget(void* header, void* data);
long capset(void* header, const void* data);
long pidfd_open(long pid, long flags);
long setpgid(long pid, long group);
long perf_event_open(void* attributes, long pid, long cpu, long group, long flags);
long set_tid_address(uint32_t* word);
long set_robust_list(void* list, size_t size);
long get_robust_list(long tid, void** list, size_t* size);
long rseq();
long exit(long status);
long fork();
long clone(long flags, long b, long c, long d, long e);
long clone3();
long arch_prctl(long code, long address);
long sched_getaffinity(int tid, size_t size, cpu_set_t* set);
long sched_rr_get_interval(int tid, timespec* interval);
long getpriority(int which, id_t who);
long ioprio_get(long which, long who, long c);
long ioprio_set(long which, long who, long priority);

// Signals (syscall_signals.cpp).
long tkill(int tid, int sig);
long tgkill(int tgid, int tid, int sig);
long rt_tgsigqueueinfo(int tgid, int tid, int sig, const siginfo_t* info);
long rt_sigaction(int sig, const kernel_handler* act, kernel_handler* old, size_t size);
long rt_sigprocmask(int how, const uint64_t* set, uint64_t* old, size_t size);
long rt_sigpending(uint64_t* set, size_t size);
long rt_sigsuspend(const uint64_t* mask, size_t size);
long rt_sigtimedwait(const uint64_t* set, siginfo_t* info, const timespec* timeout, size_t size);
long signalfd(int fd, const uint64_t* mask, size_t size);
long signalfd4(int fd, const uint64_t* mask, size_t size, int flags);

// Clocks, timers, and waits with a time limit (syscall_time.cpp).
struct MaskAndSize {
  const uint64_t* mask;
  size_t size;
};
long epoll_pwait(int fd, epoll_event* events, int n, int ms, const uint64_t* mask, size_t size);
long epoll_pwait2(int fd, epoll_event* events, int n, const timespec* timeout, const uint64_t* mask, size_t size);
long ppoll(pollfd* fds, nfds_t n, timespec* timeout, const uint64_t* mask, size_t size);
long pselect6(int n, fd_set* r, fd_set* w, fd_set* e, timespec* timeout, const MaskAndSize* last);
long nanosleep(const timespec* t, timespec* left);
long clock_nanosleep(clockid_t clock, int flags, const timespec* t, timespec* left);
long clock_gettime(clockid_t clock, timespec* now);
long clock_getres(clockid_t clock, timespec* resolution);
long clock_settime(clockid_t clock, const timespec* t);
long getrusage(int who, rusage* usage);
long timer_create(clockid_t clock, const struct sigevent* event, int* number);
long timer_settime(int number, int flags, const itimerspec* value, itimerspec* old);
long timer_gettime(int number, itimerspec* value);
long timer_getoverrun(int number);
long timer_delete(int number);

}  // namespace calls

}  // namespace fiberthread
