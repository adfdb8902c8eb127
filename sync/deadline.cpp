// SPDX-License-Identifier: MIT
#include "fiberthread/deadline.h"

#include "sched/fiber.h"

namespace fiberthread {

uint64_t deadline_after(uint64_t timeout_ns) {
  uint64_t now = now_ns();
  return timeout_ns >= kForever - now ? kForever : now + timeout_ns;
}

}  // namespace fiberthread
