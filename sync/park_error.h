// SPDX-License-Identifier: MIT
// A wait in the parking lot for the public interface: it returns an error number, and cancellation ends it.
#pragma once
#include <cerrno>

#include "sync/checks.h"
#include "sync/parking_lot.h"
#include "sched/wait.h"

namespace fiberthread {

// Returns 0 if the waiter was woken, or if must_wait() returned false. ETIMEDOUT or ECANCELED: the waiter is queued no longer. May park.
template <class MustWait>
int park_error(const void* address, Waiter& w, MustWait must_wait, const ParkReason& reason, uint64_t deadline_ns,
               uint32_t interrupt_mask = kInterruptEnd) {
  switch (park(address, w, must_wait, reason, plain_deadline(deadline_ns), interrupt_mask)) {
    case WakeReason::TimedOut: return ETIMEDOUT;
    case WakeReason::Interrupted: return ECANCELED;
    default: return 0;
  }
}

// Checks that no thread waits. For destructors in debug builds.
inline void check_unused(uint64_t word, const char* type, const void* object) {
  check(word != kDestroyedWord, type, object, "is destroyed twice");
  LockedQueue q(object);
  check(!q.first(), type, object, "is destroyed while somebody waits");
}

}  // namespace fiberthread
