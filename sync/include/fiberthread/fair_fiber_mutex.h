// SPDX-License-Identifier: MIT
// FairFiberMutex: a mutex that is passed on strictly in the order in which it was asked for, also without waiting.
//
// Cost: uncontended lock + unlock is two compare-and-swaps. When somebody waits, unlock() gives it to the first, so each hand-over is a
// park and an unpark, and takes a ticket's way through the sequencer: for when order matters more than throughput. FiberMutex is
// faster under contention.
#pragma once
#include "fiber_sequencer.h"

namespace fiberthread {

// Lockable as the C++ standard has it ([thread.req.lockable]): fits std::lock_guard, std::unique_lock. Not recursive. All members:
// fibers, bound fibers and foreign threads; not in signal handlers that may interrupt the owner. The last one to unlock it may destroy
// it, or whoever locks it after him.
class FairFiberMutex {
 public:
  using Future = FiberSequencer::Future;

  constexpr FairFiberMutex() : sequence_(kTickets) {}
#ifdef FIBERTHREAD_DEBUG_CHECKS
  ~FairFiberMutex() {
    if (sequence_.word_.load(std::memory_order_relaxed) & kHeld) report_misuse("FairFiberMutex", this, "is destroyed while it is locked");
  }
#endif

  // Two locks come in the order in which the calls returned or, of those that wait, took their tickets. May park. Not ended by
  // cancellation.
  void lock() {
    if (!try_lock()) lock_slow();
  }
  // Never parks. False if it is held, or others wait for it.
  bool try_lock() {
    uint64_t w = sequence_.word_.load(std::memory_order_relaxed);
#ifdef FIBERTHREAD_DEBUG_CHECKS
    if (w == kDestroyedWord) report_misuse("FairFiberMutex", this, "is locked after it was destroyed");
#endif
    // Acquire, with the release in unlock(): the last owner's writes are seen.
    return !(w & (kHeld | kWaiters | kBusy)) &&
           sequence_.word_.compare_exchange_strong(w, w + kHeld, std::memory_order_acquire, std::memory_order_relaxed);
  }
  // As lock(), but gives up: ETIMEDOUT at `deadline_ns` on CLOCK_MONOTONIC or after `timeout_ns`, ECANCELED if the caller was cancelled.
  // 0: it is the caller's. Those behind it in the queue keep their order.
  FIBERTHREAD_API int lock_until(uint64_t deadline_ns);
  FIBERTHREAD_API int lock_for(uint64_t timeout_ns);
  // Takes its ticket and returns: `future` is set to 0 once the mutex is the caller's, which it then must unlock; or to ECANCELED if
  // Future::cancel() came first. One that was set before is reset first. Never parks.
  FIBERTHREAD_API void lock(Future* future);
  // By whoever holds it; may be another than has locked it. Unlocking a free one does nothing. Never parks.
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

  // Its count is odd while the mutex is held. Each waiter's token is a ticket, which the combiner gives out in the order of the
  // requests. A count that is even goes to the first ticket that is left, so that tickets given up leave no gaps.
  FiberSequencer sequence_;
};

}  // namespace fiberthread
