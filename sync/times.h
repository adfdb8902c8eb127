// Times as the public interface has them.
#pragma once
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// A caller's deadline on CLOCK_MONOTONIC, in the scheduler's terms: without the bit that means another clock, and not early.
inline uint64_t plain_deadline(uint64_t deadline_ns) {
  return deadline_ns >= kNever - 1 ? kNever : (deadline_ns + 1) & ~kFollowsRealtime;
}

}  // namespace fiberthread
