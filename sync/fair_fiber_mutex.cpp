// SPDX-License-Identifier: MIT
#include "fiberthread/fair_fiber_mutex.h"

#include "sched/fiber.h"
#include "fiberthread/deadline.h"
#include "sched/wait.h"

namespace fiberthread {

void FairFiberMutex::lock_slow() { sequence_.wait_for(0, kNever, 0, "fair mutex"); }

int FairFiberMutex::lock_until(uint64_t deadline_ns) {
  return try_lock() ? 0 : sequence_.wait_for(0, plain_deadline(deadline_ns), kInterruptEnd, "fair mutex");
}

int FairFiberMutex::lock_for(uint64_t timeout_ns) { return try_lock() ? 0 : lock_until(deadline_after(timeout_ns)); }

void FairFiberMutex::lock(Future* future) {
  if (!try_lock()) {
    sequence_.request(*future, 0);
    return;
  }
  FiberSequencer::make_ready(*future);
  future->set(0);
}

}  // namespace fiberthread
