// SPDX-License-Identifier: MIT
// Deadlines of POSIX calls (a clock and a timespec) as deadlines of park_if() (now_ns()).
#pragma once
#include <time.h>

#include <cstdint>

#include "sched/wait.h"

namespace fiberthread {

constexpr int64_t kNsPerSec = 1'000'000'000;

inline bool valid(const timespec& t) { return t.tv_nsec >= 0 && t.tv_nsec < kNsPerSec; }
// The clocks that timed and clock waits know.
inline bool is_wait_clock(clockid_t c) { return c == CLOCK_REALTIME || c == CLOCK_MONOTONIC; }

// now_ns()'s time at which `clock` will show `t`, as far as one can tell now: a clock that is set moves it. Never early
// if the clock is not set. kNever if it is too far away to come (or t is null).
uint64_t deadline_from(clockid_t clock, const timespec* t);
// The time that is `t`, a valid timespec, from now. kNever if that is too far away to come.
uint64_t deadline_in(const timespec& t);
// Does `clock` show `t` or later? To be asked once the deadline has passed.
bool reached(clockid_t clock, const timespec* t);

}  // namespace fiberthread
