// SPDX-License-Identifier: MIT
// Turns the deadlines of POSIX calls (a clock and a timespec) into deadlines of park_if() (now_ns()).
#pragma once
#include <errno.h>
#include <time.h>

#include <cstdint>

#include "sched/explore/explore.h"
#include "sched/wait.h"

namespace fiberthread {

constexpr int64_t kNsPerSec = 1'000'000'000;

inline bool valid(const timespec& t) { return t.tv_nsec >= 0 && t.tv_nsec < kNsPerSec; }
// Returns true for the clocks that timed waits and clock waits know.
inline bool is_wait_clock(clockid_t c) { return c == CLOCK_REALTIME || c == CLOCK_MONOTONIC; }

// Returns the time of now_ns() at which `clock` will show `t`, as far as can be known now; setting the clock moves it. Never early if the
// clock is not set. kNever if `t` is null or too far away.
uint64_t deadline_from(clockid_t clock, const timespec* t);
// Returns the time of now_ns() that is `t`, a valid timespec, from now. kNever if that is too far away.
uint64_t deadline_in(const timespec& t);
// Returns how long it is until now_ns() is `deadline`. Zero if it has passed.
timespec time_until(uint64_t deadline);
// Returns true if `clock` shows `t` or later. Asked once the deadline has passed.
bool reached(clockid_t clock, const timespec* t);

// For calls that libc answers, and that wait in the kernel: its time is another than the program's while a program is explored.
// Returns f(t), where t is `t` in the kernel's time.
template <class F>
auto in_kernel_time(clockid_t clock, const timespec* t, F f) {
  if (__builtin_expect(!exploring, 1) || !t || !valid(*t)) return f(t);
  timespec real = explore_kernel_time(clock, *t);
  auto r = f(&real);
  bool is_error = sizeof r == sizeof(int);  // else it is a number of bytes, or -1
  if ((is_error && r == ETIMEDOUT) || (r == -1 && errno == ETIMEDOUT)) explore_waited_until(clock, *t);
  return r;
}
// Returns f(). If that is 0, it has waited as long as `t`, which may be null.
template <class F>
auto for_a_time(const timespec* t, F f) {
  if (__builtin_expect(!exploring, 1) || !t || !valid(*t)) return f();
  timespec copy = *t;  // Linux changes that of select()
  auto r = f();
  if (r == 0) explore_waited(copy);
  return r;
}
template <class F>
auto for_a_time(int ms, F f) {
  timespec t{ms / 1000, ms % 1000 * 1'000'000};
  return for_a_time(ms > 0 ? &t : nullptr, f);
}

}  // namespace fiberthread
