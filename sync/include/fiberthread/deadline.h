// SPDX-License-Identifier: MIT
// Deadlines and timeouts of waits, in nanoseconds on CLOCK_MONOTONIC.
#pragma once
#include <cstdint>

#include "api.h"

namespace fiberthread {

// A deadline, or a timeout, that never comes.
constexpr uint64_t kForever = ~uint64_t{0};

// Returns the deadline `timeout_ns` nanoseconds from now, or kForever if the clock cannot hold it. Any thread and signal handlers. Never
// parks.
FIBERTHREAD_API uint64_t deadline_after(uint64_t timeout_ns);

}  // namespace fiberthread
