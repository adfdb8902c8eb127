// SPDX-License-Identifier: MIT
// FiberMutex: an unfair mutex in one word.
//
// Cost: uncontended lock + unlock is two CASes; a contended hand-over is one park and one unpark. Fairness: a thread that comes by may take
// the lock before a woken waiter does. But a waiter that has lost such a race and waits for more than 1 ms, or has lost 16 of them, is
// handed the lock directly. Waiters keep their place in the queue. Not recursive: a thread that locks it twice waits for ever. Zero-filled
// memory is an unlocked mutex. A mutex needs no destruction.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "deadline.h"
#include "misuse.h"

namespace fiberthread {

struct FiberRecord;

// Lockable as the C++ standard has it ([thread.req.lockable]): fits std::lock_guard, std::unique_lock, std::condition_variable_any. Fibers
// and foreign threads may call all members; signal handlers must not if they may interrupt the owner. The last owner may destroy the mutex
// after it has unlocked it.
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

  // Waits until the mutex is the caller's. Cancellation does not end the wait. Fibers and foreign threads. May park.
  FIBERTHREAD_API void lock();
  // Locks the mutex if it is free, and returns whether it did. Fibers and foreign threads. Never parks.
  FIBERTHREAD_API bool try_lock();
  // Waits like lock(), but returns false at `deadline_ns` on CLOCK_MONOTONIC. Tries at least once. Fibers and foreign threads. May park.
  FIBERTHREAD_API bool try_lock_until(uint64_t deadline_ns);
  // Unlocks the mutex and wakes a waiter. Another thread than the one that locked it may call it. Does nothing if the mutex is free. Fibers
  // and foreign threads. Never parks.
  FIBERTHREAD_API void unlock();

  // ---- the library's own ----

  // Returns the owner, or null if the mutex is free. May be out of date at once, unless it is the caller.
  FiberRecord* owner() const { return reinterpret_cast<FiberRecord*>(word_.load(std::memory_order_relaxed) & ~kHasWaiters); }

  // The same functions for callers that already know their record (self() of sched).
  bool try_lock(FiberRecord* me) {
    uint64_t free = 0;
    // Acquire, paired with the release in unlock(): the caller sees the writes of the last owner.
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

  // The same for a process that has one thread, without locked instructions. unlock_alone() returns false if the owner is not `me` alone.
  bool try_lock_alone(FiberRecord* me) {
    if (word_.load(std::memory_order_relaxed) != 0) return false;
    word_.store(value(me), std::memory_order_relaxed);
    return true;
  }
  bool unlock_alone(FiberRecord* me) {
    if (word_.load(std::memory_order_relaxed) != value(me)) return false;
    word_.store(0, std::memory_order_relaxed);
    return true;
  }

  // Locks the mutex again after a wait whose waiter may be moved to this mutex's queue (condition variables). Waiter::requeue_to is the
  // address of the mutex, and the woken waiter passes its token. It must take the lock and cannot give up. May park.
  void relock(FiberRecord* me, uint64_t token) {
    if (!(token & kHandedOver)) lock_slow(me, kForever, token);
  }
  // If the mutex is held, makes its owner wake a waiter when it unlocks. Returns false if the mutex is free. The caller holds the lock of
  // the queue.
  bool expect_waiters();

 private:
  // {owner: 63, hasWaiters: 1}. A free mutex is 0. The bit asks the owner to wake a waiter. It is clear while a woken waiter is on its way
  // to the lock, even if other waiters are queued, so that threads that come by meanwhile take the fast path. The woken waiter knows from
  // its token that others are queued, and sets the bit again.
  static constexpr uint64_t kHasWaiters = 1;
  // Values of Waiter::token.
  static constexpr uint64_t kMore = 1, kHandedOver = 2;
  static uint64_t value(FiberRecord* f) { return reinterpret_cast<uint64_t>(f); }
  bool lock_slow(FiberRecord* me, uint64_t deadline_ns, uint64_t token);
  void unlock_slow();

  std::atomic<uint64_t> word_{0};
};
static_assert(sizeof(FiberMutex) == 8, "one word");

}  // namespace fiberthread
