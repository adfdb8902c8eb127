// SPDX-License-Identifier: MIT
// FiberMutex: an unfair mutex in one word.
//
// Cost: uncontended lock + unlock is two CASes; a contended hand-over one park and one unpark. Fairness: who comes by
// may take the lock before a woken waiter does, but a waiter that has lost a race and waits for more than 1 ms, or has lost 16
// of them, is handed the lock directly; waiters keep their place in the queue. Not recursive: locking it twice
// waits for ever. Zero-filled memory is an unlocked mutex; nothing needs to be destroyed.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "deadline.h"
#include "misuse.h"

namespace fiberthread {

struct FiberRecord;

// Lockable as the C++ standard has it ([thread.req.lockable]): fits std::lock_guard, std::unique_lock, std::condition_variable_any. All
// members: fibers, bound fibers and foreign threads; not in signal handlers that may interrupt the owner. lock() and try_lock_until() may
// park; the others never do. Whoever is its owner last may destroy it.
class FiberMutex {
 public:
  constexpr FiberMutex() = default;
  FiberMutex(const FiberMutex&) = delete;
  FiberMutex& operator=(const FiberMutex&) = delete;
#ifdef FIBERTHREAD_DEBUG_CHECKS
  ~FiberMutex() {
    uint64_t w = word_.exchange(kDestroyedWord, std::memory_order_relaxed);
    if (w == kDestroyedWord) report_misuse("FiberMutex", this, "is destroyed twice");
    if (w & ~kHasWaiters) report_misuse("FiberMutex", this, "is destroyed while it is locked");
  }
#endif

  FIBERTHREAD_API void lock();
  FIBERTHREAD_API bool try_lock();
  // Gives up at `deadline_ns` on CLOCK_MONOTONIC and returns false. Tries at least once. Not ended by cancellation.
  FIBERTHREAD_API bool try_lock_until(uint64_t deadline_ns);
  // Whoever holds it; unlocking a free one does nothing.
  FIBERTHREAD_API void unlock();

  // ---- the library's own ----

  // Null if it is free. May be out of date at once, unless it is the caller.
  FiberRecord* owner() const { return reinterpret_cast<FiberRecord*>(word_.load(std::memory_order_relaxed) & ~kHasWaiters); }

  // The same for callers that know their record (sched's self()) already.
  bool try_lock(FiberRecord* me) {
    uint64_t free = 0;
    // Acquire, with the release in unlock: the last owner's writes are seen.
    return word_.compare_exchange_strong(free, value(me), std::memory_order_acquire, std::memory_order_relaxed);
  }
  void lock(FiberRecord* me) {
    if (__builtin_expect(!try_lock(me), 0)) lock_slow(me, kForever, 0);
  }
  bool try_lock_until(FiberRecord* me, uint64_t deadline_ns) { return try_lock(me) || lock_slow(me, deadline_ns, 0); }
  void unlock(FiberRecord* me) {
    uint64_t mine = value(me);
    if (__builtin_expect(!word_.compare_exchange_strong(mine, 0, std::memory_order_release, std::memory_order_relaxed), 0)) unlock_slow();
  }

  // For waits whose waiter may be moved to this mutex's queue (condition variables): Waiter::requeue_to is the mutex's
  // address, and once woken, the waiter comes here with its token. It must take the lock and not give up.
  void relock(FiberRecord* me, uint64_t token) {
    if (!(token & kHandedOver)) lock_slow(me, kForever, token);
  }
  // Under the lock of the queue: if the mutex is held, makes its owner wake somebody when it unlocks. False if it is free.
  bool expect_waiters();

 private:
  // {owner: 63, hasWaiters: 1}. A free mutex is 0. The bit asks the owner to wake somebody. It is clear while a woken waiter
  // is on its way to the lock, even if others are queued: so those who come by meanwhile take the fast path. The
  // woken one knows of the others from its token and sets the bit again.
  static constexpr uint64_t kHasWaiters = 1;
  // Waiter::token
  static constexpr uint64_t kMore = 1, kHandedOver = 2;
  static uint64_t value(FiberRecord* f) { return reinterpret_cast<uint64_t>(f); }
  bool lock_slow(FiberRecord* me, uint64_t deadline_ns, uint64_t token);
  void unlock_slow();

  std::atomic<uint64_t> word_{0};
};
static_assert(sizeof(FiberMutex) == 8, "one word");

}  // namespace fiberthread
