// SPDX-License-Identifier: MIT
// System calls by number: clocks, timers, and waits with a time limit.
#include <poll.h>

#include "shim/clock.h"
#include "shim/syscall_parts.h"
#include "shim/time.h"

namespace fiberthread::calls {
namespace {

// A timeout after which Linux, unlike libc, tells what is left of it.
class Remaining {
 public:
  explicit Remaining(timespec* user) : user_(user) {
    if (!user_) return;
    if (!copy_user(&time_, user_)) error_ = -EFAULT;
    else if (!valid(time_) || time_.tv_sec < 0) error_ = -EINVAL;
    else if (time_.tv_sec || time_.tv_nsec) start_ = now_ns();
  }
  ~Remaining() {
    if (!start_) return;
    auto all = static_cast<__int128>(time_.tv_sec) * kNsPerSec + time_.tv_nsec, left = all - static_cast<__int128>(now_ns() - start_);
    if (left < 0) left = 0;
    time_ = {static_cast<time_t>(left / kNsPerSec), static_cast<long>(left % kNsPerSec)};
    copy_user(user_, &time_);
  }
  long error() const { return error_; }
  const timespec* get() const { return user_ ? &time_ : nullptr; }

 private:
  timespec* user_;
  timespec time_{};
  uint64_t start_ = 0;
  long error_ = 0;
};

// The mask of a call that waits with another mask, if the caller gives one.
class MaskDuring {
 public:
  MaskDuring(const uint64_t* mask, size_t size) : given_(mask) {
    if (mask) error_ = copy_mask(mask, size, set_);
  }
  long error() const { return error_; }
  const sigset_t* get() const { return given_ ? &set_ : nullptr; }

 private:
  const uint64_t* given_;
  sigset_t set_;
  long error_ = 0;
};

}  // namespace

long epoll_pwait(int fd, epoll_event* events, int n, int ms, const uint64_t* mask, size_t size) {
  MaskDuring set(mask, size);
  if (set.error()) return set.error();
  return not_cancelled([&] { return ::epoll_pwait(fd, events, n, ms, set.get()); });
}

long epoll_pwait2(int fd, epoll_event* events, int n, const timespec* timeout, const uint64_t* mask, size_t size) {
  // If the kernel has no such call, or a filter refuses it, this returns what they return.
  if (long known = program_syscall(kEpollPwait2, -1); known != -EINVAL && known != -EBADF) return known;
  MaskDuring set(mask, size);
  if (set.error()) return set.error();
  return not_cancelled([&] { return ::epoll_pwait2(fd, events, n, timeout, set.get()); });
}

long ppoll(pollfd* fds, nfds_t n, timespec* timeout, const uint64_t* mask, size_t size) {
  Remaining time(timeout);
  if (time.error()) return time.error();
  MaskDuring set(mask, size);
  if (set.error()) return set.error();
  return not_cancelled([&] { return ::ppoll(fds, n, time.get(), set.get()); });
}

long pselect6(int n, fd_set* r, fd_set* w, fd_set* e, timespec* timeout, const MaskAndSize* user_last) {
  Remaining time(timeout);
  MaskAndSize last{};
  if (user_last && !copy_user(&last, user_last)) return -EFAULT;
  if (time.error()) return time.error();
  MaskDuring set(last.mask, last.size);
  if (set.error()) return set.error();
  return not_cancelled([&] { return pselect(n, r, w, e, time.get(), set.get()); });
}

long clock_nanosleep(clockid_t clock, int flags, const timespec* t, timespec* left) {
  // For any other clock, the kernel's answer counts. It looks at the clock first.
  bool known = clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME || clock == CLOCK_TAI;
  if (!known && (clock > 0 || !owner_of_clock(clock))) return program_syscall(SYS_clock_nanosleep, clock, flags, arg(t), arg(left));
  timespec copy, rest;
  if (!copy_user(&copy, t)) return -EFAULT;
  NotCancelled not_cancelled;
  int e = ::clock_nanosleep(clock, flags, &copy, left && !(flags & TIMER_ABSTIME) ? &rest : nullptr);
  if (e == EINTR && left && !(flags & TIMER_ABSTIME) && !copy_user(left, &rest)) return -EFAULT;
  return -e;
}

long nanosleep(const timespec* t, timespec* left) { return calls::clock_nanosleep(CLOCK_MONOTONIC, 0, t, left); }

long clock_gettime(clockid_t clock, timespec* user_now) {
  if (!owner_of_clock(clock)) return program_syscall(SYS_clock_gettime, clock, arg(user_now));
  timespec now;
  ::clock_gettime(clock, &now);
  return copy_user(user_now, &now) ? 0 : -EFAULT;
}

long clock_getres(clockid_t clock, timespec* resolution) {
  return program_syscall(SYS_clock_getres, owner_of_clock(clock) ? CLOCK_THREAD_CPUTIME_ID : clock, arg(resolution));
}

long clock_settime(clockid_t clock, const timespec* t) {
  return program_syscall(SYS_clock_settime, clock < 0 && owner_of_clock(clock) ? kClockOfCaller : clock, arg(t));
}

long getrusage(int who, rusage* user_usage) {
  if (who != RUSAGE_THREAD) return program_syscall(SYS_getrusage, who, arg(user_usage));
  rusage usage;
  ::getrusage(RUSAGE_THREAD, &usage);
  return copy_user(user_usage, &usage) ? 0 : -EFAULT;
}

// libc's handle of a timer that signals is the kernel's number.
long timer_create(clockid_t clock, const struct sigevent* event, int* number) {
  struct sigevent copy;
  if (event && !copy_user(&copy, event)) return -EFAULT;
  bool thread = event && copy.sigev_notify == SIGEV_THREAD;  // to libc that means a function
  if (thread) return program_syscall(SYS_timer_create, clock, arg(event), arg(number));
  timer_t timer;
  if (::timer_create(clock, event ? &copy : nullptr, &timer) != 0) return -errno;
  int n = static_cast<int>(reinterpret_cast<intptr_t>(timer));
  if (copy_user(number, &n)) return 0;
  ::timer_delete(timer);
  return -EFAULT;
}

namespace {
timer_t handle_of(int number) { return reinterpret_cast<timer_t>(static_cast<intptr_t>(number)); }
}  // namespace

long timer_settime(int number, int flags, const itimerspec* value, itimerspec* old) {
  return kernel_result(::timer_settime(handle_of(number), flags, value, old));
}
long timer_gettime(int number, itimerspec* value) { return kernel_result(::timer_gettime(handle_of(number), value)); }
long timer_getoverrun(int number) { return kernel_result(::timer_getoverrun(handle_of(number))); }
long timer_delete(int number) { return kernel_result(::timer_delete(handle_of(number))); }

}  // namespace fiberthread::calls
