// SPDX-License-Identifier: MIT
// FiberEvent: set or not, until the program changes it (manual reset). A wait that has begun before a set() ends, even if a reset() follows
// at once. Cost: that of the FiberSequencer inside; the lowest bit of its count is the event.
#pragma once
#include "fiber_sequencer.h"

namespace fiberthread {

// Fibers and foreign threads may call all members. An event may be destroyed as soon as a wait that set() ended has returned, even if set()
// has not, provided that no other thread waits. Zero-filled memory is an event that is not set.
class FiberEvent {
 public:
  using Future = FiberSequencer::Future;

  constexpr FiberEvent() = default;

  // Sets the event and wakes all waiters, or makes it one that is not set. Fibers, foreign threads and signal handlers. Never parks.
  void set() { sequence_.advance(sequence_.get() | 1); }
  void reset() {
    uint64_t n = sequence_.get();
    sequence_.advance(n + (n & 1));
  }
  // Returns whether the event is set. Acquire, paired with the release in set(). Fibers, foreign threads and signal handlers. Never parks.
  bool isSet() const { return sequence_.get() & 1; }

  // Waits until the event is set, or has been set since the call, and returns 0. ECANCELED: the caller was cancelled. ETIMEDOUT at
  // `deadline_ns` on CLOCK_MONOTONIC, or after `timeout_ns` nanoseconds. Fibers and foreign threads. May park.
  int wait() { return sequence_.wait(sequence_.get() | 1); }
  int waitUntil(uint64_t deadline_ns) { return sequence_.waitUntil(sequence_.get() | 1, deadline_ns); }
  int waitWithTimeout(uint64_t timeout_ns) { return sequence_.waitWithTimeout(sequence_.get() | 1, timeout_ns); }
  // Has `future` set to 0 once the event is set, and returns at once. FiberSequencer::Future::cancel() gives the wait up. Fibers and
  // foreign threads. Never parks.
  void wait(Future* future) { sequence_.wait(sequence_.get() | 1, future); }

 private:
  FiberSequencer sequence_;  // odd: the event is set
};

}  // namespace fiberthread
