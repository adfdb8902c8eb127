// SPDX-License-Identifier: MIT
// RwLock: many readers or one writer.
//
// Cost: uncontended lock and unlock are one compare-and-swap each. Fairness: FIFO by phases. Once a thread waits, all later threads wait
// behind it, readers too. The thread that unlocks last hands over to the first waiter, and if that is a reader, to all readers up to the
// next writer. So neither side starves. A reader that locks it again while a writer waits deadlocks.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "deadline.h"

namespace fiberthread {

// SharedLockable as the C++ standard has it: fits std::unique_lock, std::shared_lock. Fibers and foreign threads may call all members;
// signal handlers must not. Zero-filled memory is an unlocked lock.
class RwLock {
 public:
  constexpr RwLock() = default;
  RwLock(const RwLock&) = delete;
  RwLock& operator=(const RwLock&) = delete;
  FIBERTHREAD_API ~RwLock();

  // Waits until the caller is the writer, or one of the readers. Cancellation does not end the wait. Fibers and foreign threads. May park.
  void lock() {
    if (!try_lock()) lock_slow(true, kForever, 0);
  }
  void lock_shared() {
    if (!try_lock_shared()) lock_slow(false, kForever, 0);
  }
  // Waits likewise, and returns 0. ETIMEDOUT at `deadline_ns` on CLOCK_MONOTONIC or after `timeout_ns` nanoseconds. ECANCELED: the caller
  // was cancelled. A call that need not wait looks neither at the time nor at cancellation. Fibers and foreign threads. May park.
  int lock_until(uint64_t deadline_ns) { return try_lock() ? 0 : lock_slow(true, deadline_ns, kEnds); }
  int lock_shared_until(uint64_t deadline_ns) { return try_lock_shared() ? 0 : lock_slow(false, deadline_ns, kEnds); }
  int lock_for(uint64_t timeout_ns) { return try_lock() ? 0 : lock_slow(true, deadline_after(timeout_ns), kEnds); }
  int lock_shared_for(uint64_t timeout_ns) { return try_lock_shared() ? 0 : lock_slow(false, deadline_after(timeout_ns), kEnds); }
  // Locks it if that needs no wait, and returns whether it did. Fibers and foreign threads. Never parks.
  bool try_lock() {
    uint64_t w = 0;
    return word_.compare_exchange_strong(w, kWriter, std::memory_order_acquire, std::memory_order_relaxed);
  }
  bool try_lock_shared() {
    uint64_t w = word_.load(std::memory_order_relaxed);
    while (!(w & (kWriter | kWaiting)))
      if (word_.compare_exchange_weak(w, w + kReader, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    return false;
  }
  // Unlocks it, by the writer or by a reader, and hands it to waiters. Fibers and foreign threads. Never parks.
  void unlock() {
    uint64_t w = kWriter;
    if (!word_.compare_exchange_strong(w, 0, std::memory_order_release, std::memory_order_relaxed)) unlock_slow(kWriter);
  }
  void unlock_shared() {
    uint64_t w = word_.load(std::memory_order_relaxed);
    // The last reader to leave looks for waiters. Release: our reads complete before a later writer's stores.
    while (w != (kReader | kWaiting))
      if (word_.compare_exchange_weak(w, w - kReader, std::memory_order_release, std::memory_order_relaxed)) return;
    unlock_slow(kReader);
  }

 private:
  // {readers: 62, waiting: 1, writer: 1}. `waiting` changes only under the lock of the queue. It may be left over after a wait that was
  // given up.
  static constexpr uint64_t kWriter = 1, kWaiting = 2, kReader = 4;
  static constexpr uint32_t kEnds = 1;
  FIBERTHREAD_API int lock_slow(bool writer, uint64_t deadline_ns, uint32_t ends);
  FIBERTHREAD_API void unlock_slow(uint64_t mine);

  std::atomic<uint64_t> word_{0};
};

}  // namespace fiberthread
