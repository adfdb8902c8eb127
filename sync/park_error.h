// SPDX-License-Identifier: MIT
// A wait in the parking lot as the public interface has it: ends by an error number, and by cancellation.
#pragma once
#include <cerrno>

#include "sync/checks.h"
#include "sync/parking_lot.h"
#include "sched/wait.h"

namespace fiberthread {

// 0 if the waiter was woken, or must_wait() said no. ETIMEDOUT or ECANCELED: it is queued no longer.
template <class MustWait>
int park_error(const void* address, Waiter& w, MustWait must_wait, const ParkReason& reason, uint64_t deadline_ns,
               uint32_t interrupt_mask = kInterruptEnd) {
  switch (park(address, w, must_wait, reason, plain_deadline(deadline_ns), interrupt_mask)) {
    case WakeReason::TimedOut: return ETIMEDOUT;
    case WakeReason::Interrupted: return ECANCELED;
    default: return 0;
  }
}

// In destructors of debug builds.
inline void check_unused(uint64_t word, const char* type, const void* object) {
  check(word != kDestroyed, type, object, "is destroyed twice");
  LockedQueue q(object);
  check(!q.first(), type, object, "is destroyed while somebody waits");
}

}  // namespace fiberthread
