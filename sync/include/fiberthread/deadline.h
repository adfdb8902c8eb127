// SPDX-License-Identifier: MIT
// The times of waits: nanoseconds on CLOCK_MONOTONIC.
#pragma once
#include <cstdint>

#include "api.h"

namespace fiberthread {

// A deadline, or a timeout, that does not come.
constexpr uint64_t kForever = ~uint64_t{0};

// `timeout_ns` from now; kForever if that is beyond the clock's end. Anybody, signal handlers too; never parks.
FIBERTHREAD_API uint64_t deadline_after(uint64_t timeout_ns);

}  // namespace fiberthread
