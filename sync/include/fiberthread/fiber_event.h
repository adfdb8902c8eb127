// SPDX-License-Identifier: MIT
// FiberEvent: set or not, until it is changed (manual reset). A wait that has begun before a set() ends, even if a reset() follows
// at once. Cost: as FiberSequencer, of whose count it is the lowest bit.
#pragma once
#include "fiber_sequencer.h"

namespace fiberthread {

// All members: fibers, bound fibers and foreign threads. May be destroyed as soon as a wait that set() has ended has returned, even if
// set() has not, provided that nobody else waits. Zero-filled memory is an event that is not set.
class FiberEvent {
 public:
  using Future = FiberSequencer::Future;

  constexpr FiberEvent() = default;

  // Any thread; never park; also in signal handlers.
  void set() { sequence_.advance(sequence_.get() | 1); }
  void reset() {
    uint64_t n = sequence_.get();
    sequence_.advance(n + (n & 1));
  }
  // Acquire, with the release in set().
  bool isSet() const { return sequence_.get() & 1; }

  // Returns 0 once it is set, or has been since the call. Or ECANCELED if the caller was cancelled; ETIMEDOUT at `deadline_ns` on
  // CLOCK_MONOTONIC, or after `timeout_ns`. May park. Not in signal handlers.
  int wait() { return sequence_.wait(sequence_.get() | 1); }
  int waitUntil(uint64_t deadline_ns) { return sequence_.waitUntil(sequence_.get() | 1, deadline_ns); }
  int waitWithTimeout(uint64_t timeout_ns) { return sequence_.waitWithTimeout(sequence_.get() | 1, timeout_ns); }
  // Has `future` set then, and returns at once. Never parks. See FiberSequencer::Future for giving it up.
  void wait(Future* future) { sequence_.wait(sequence_.get() | 1, future); }

 private:
  FiberSequencer sequence_;  // odd: set
};

}  // namespace fiberthread
