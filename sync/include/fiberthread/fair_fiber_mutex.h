// SPDX-License-Identifier: MIT
// FairFiberMutex: a mutex that is handed over strictly in the order of the requests, also of requests that do not wait.
//
// Cost: uncontended lock + unlock is two compare-and-swaps. If a thread waits, unlock() hands the mutex to the first waiter. So each
// hand-over is a park and an unpark, and the way of a ticket through the sequencer. Use it when order matters more than throughput.
// FiberMutex is faster under contention.
#pragma once
#include "fiber_sequencer.h"

namespace fiberthread {

// Lockable as the C++ standard has it ([thread.req.lockable]): fits std::lock_guard, std::unique_lock. Not recursive. Fibers and foreign
// threads may call all members; signal handlers must not if they may interrupt the owner. The last owner may destroy the mutex after it has
// unlocked it.
class FairFiberMutex {
 public:
  using Future = FiberSequencer::Future;

  constexpr FairFiberMutex() : sequence_(kTickets) {}
#ifdef FIBERTHREAD_DEBUG_CHECKS
  ~FairFiberMutex() {
    if (sequence_.word_.load(std::memory_order_relaxed) & kHeld) report_misuse("FairFiberMutex", this, "is destroyed while it is locked");
  }
#endif

  // Waits until the mutex is the caller's. Callers get it in the order of their tickets; a call that need not wait counts when it returns.
  // Cancellation does not end the wait. Fibers and foreign threads. May park.
  void lock() {
    if (!try_lock()) lock_slow();
  }
  // Locks the mutex if it is free and no thread waits for it, and returns whether it did. Fibers and foreign threads. Never parks.
  bool try_lock() {
    uint64_t w = sequence_.word_.load(std::memory_order_relaxed);
#ifdef FIBERTHREAD_DEBUG_CHECKS
    if (w == kDestroyedWord) report_misuse("FairFiberMutex", this, "is locked after it was destroyed");
#endif
    // Acquire, paired with the release in unlock(): the caller sees the writes of the last owner.
    return !(w & (kHeld | kWaiters | kBusy)) &&
           sequence_.word_.compare_exchange_strong(w, w + kHeld, std::memory_order_acquire, std::memory_order_relaxed);
  }
  // Waits like lock(), but can give up. 0: the mutex is the caller's. ETIMEDOUT at `deadline_ns` on CLOCK_MONOTONIC or after `timeout_ns`
  // nanoseconds. ECANCELED: the caller was cancelled. The waiters behind it keep their order. Fibers and foreign threads. May park.
  FIBERTHREAD_API int lock_until(uint64_t deadline_ns);
  FIBERTHREAD_API int lock_for(uint64_t timeout_ns);
  // Takes a ticket and returns. `future` is set to 0 once the mutex is the caller's, which must unlock it then. It is set to ECANCELED if
  // Future::cancel() came first. A future that was set before is reset first. Fibers and foreign threads. Never parks.
  FIBERTHREAD_API void lock(Future* future);
  // Unlocks the mutex, or hands it to the first waiter. Another thread than the one that locked it may call it. Does nothing if the mutex
  // is free. Fibers and foreign threads. Never parks.
  void unlock() {
    uint64_t w = sequence_.word_.load(std::memory_order_relaxed);
#ifdef FIBERTHREAD_DEBUG_CHECKS
    if (w == kDestroyedWord) report_misuse("FairFiberMutex", this, "is unlocked after it was destroyed");
#endif
    if (w & kHeld) sequence_.increment();
  }

 private:
  static constexpr uint64_t kHeld = FiberSequencer::kOne, kTickets = FiberSequencer::kTickets;
  static constexpr uint64_t kWaiters = FiberSequencer::kWaiters, kBusy = FiberSequencer::kBusy;
  FIBERTHREAD_API void lock_slow();

  // The count is odd while the mutex is held. The token of each waiter is a ticket, which the combiner gives out in the order of the
  // requests. An even count goes to the first ticket that is left, so tickets that were given up leave no gaps.
  FiberSequencer sequence_;
};

}  // namespace fiberthread
