// SPDX-License-Identifier: MIT
// CPU clocks of single threads, as the rest of the shim needs them.
#pragma once
#include <time.h>

#include "sched/fiber.h"

namespace fiberthread {

// Returns the fiber whose CPU time this clock shows. That is the caller for CLOCK_THREAD_CPUTIME_ID, or the fiber of a number from
// pthread_getcpuclockid(). Null: the clock is the kernel's.
FiberRecord* owner_of_clock(clockid_t clock);
// Returns that number. It is made of the fiber's id as the kernel makes it of a tid.
clockid_t cpu_clock_of(const FiberRecord* f);
// The CPU clock of the kernel thread that asks.
constexpr clockid_t kClockOfCaller = -2;

}  // namespace fiberthread
