// SPDX-License-Identifier: MIT
// RwLock: many readers or one writer.
//
// Cost: uncontended lock and unlock are one compare-and-swap each. Fairness: FIFO by phases: once somebody waits, all who come wait behind
// him, readers too; who unlocks last hands over to the first in the queue, and if that is a reader, to all readers up to the next writer. So
// neither side starves. A reader that locks it again while a writer waits deadlocks.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "deadline.h"

namespace fiberthread {

// SharedLockable as the C++ standard has it: for std::unique_lock, std::shared_lock. All members: fibers, bound fibers and foreign
// threads; not in signal handlers. lock…() park; try_lock…() and unlock…() never do. Zero-filled memory is an unlocked one.
class RwLock {
 public:
  constexpr RwLock() = default;
  RwLock(const RwLock&) = delete;
  RwLock& operator=(const RwLock&) = delete;
  FIBERTHREAD_API ~RwLock();

  // Not ended by cancellation.
  void lock() {
    if (!try_lock()) lock_slow(true, kForever, 0);
  }
  void lock_shared() {
    if (!try_lock_shared()) lock_slow(false, kForever, 0);
  }
  // 0, ETIMEDOUT or ECANCELED. What need not wait looks at neither.
  int lock_until(uint64_t deadline_ns) { return try_lock() ? 0 : lock_slow(true, deadline_ns, kEnds); }
  int lock_shared_until(uint64_t deadline_ns) { return try_lock_shared() ? 0 : lock_slow(false, deadline_ns, kEnds); }
  int lock_for(uint64_t timeout_ns) { return try_lock() ? 0 : lock_slow(true, deadline_after(timeout_ns), kEnds); }
  int lock_shared_for(uint64_t timeout_ns) { return try_lock_shared() ? 0 : lock_slow(false, deadline_after(timeout_ns), kEnds); }
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
  void unlock() {
    uint64_t w = kWriter;
    if (!word_.compare_exchange_strong(w, 0, std::memory_order_release, std::memory_order_relaxed)) unlock_slow(kWriter);
  }
  void unlock_shared() {
    uint64_t w = word_.load(std::memory_order_relaxed);
    // The last one to leave looks who waits. Release: a writer that follows must not be seen by what was read here.
    while (w != (kReader | kWaiting))
      if (word_.compare_exchange_weak(w, w - kReader, std::memory_order_release, std::memory_order_relaxed)) return;
    unlock_slow(kReader);
  }

 private:
  // {readers: 62, waiting: 1, writer: 1}. `waiting` changes only under the lock of the queue; it may be left over after a wait that
  // was given up.
  static constexpr uint64_t kWriter = 1, kWaiting = 2, kReader = 4;
  static constexpr uint32_t kEnds = 1;
  FIBERTHREAD_API int lock_slow(bool writer, uint64_t deadline_ns, uint32_t ends);
  FIBERTHREAD_API void unlock_slow(uint64_t mine);

  std::atomic<uint64_t> word_{0};
};

}  // namespace fiberthread
