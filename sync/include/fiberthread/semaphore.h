// SPDX-License-Identifier: MIT
// Semaphore: a number of permits.
//
// Cost: acquire and release without waiting are one compare-and-swap each. Fairness: FIFO: permits that are released while somebody
// waits go to those who came first, and are never free in between. (E. W. Dijkstra's; the names are the C++ standard's.)
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "deadline.h"

namespace fiberthread {

// All members: fibers, bound fibers and foreign threads; release() and try_acquire() also signal handlers of a program whose first
// thread has been made. acquire() and its timed forms may park. It may be destroyed by who acquired the last permit.
class Semaphore {
 public:
  // At most 2^62 permits.
  explicit constexpr Semaphore(uint64_t permits) : word_(permits * kOne) {}
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;
  FIBERTHREAD_API ~Semaphore();

  // 0, or ECANCELED: then no permit was taken.
  int acquire() { return acquire_until(kForever); }
  // 0, ETIMEDOUT or ECANCELED. Without waiting, neither deadline nor cancellation are looked at.
  int acquire_until(uint64_t deadline_ns) { return try_acquire() ? 0 : acquire_slow(deadline_ns); }
  int acquire_for(uint64_t timeout_ns) { return try_acquire() ? 0 : acquire_slow(deadline_after(timeout_ns)); }
  bool try_acquire() {
    uint64_t w = word_.load(std::memory_order_relaxed);
    // Acquire, with the release in release(): what was done before is seen.
    while (w >= kOne && !(w & kWaiting))
      if (word_.compare_exchange_weak(w, w - kOne, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    return false;
  }
  void release(uint64_t n = 1) {
    uint64_t w = word_.load(std::memory_order_relaxed);
    while (!(w & kWaiting))
      if (word_.compare_exchange_weak(w, w + n * kOne, std::memory_order_release, std::memory_order_relaxed)) return;
    release_slow(n);
  }
  // Free permits. May be out of date at once.
  uint64_t available() const { return word_.load(std::memory_order_relaxed) / kOne; }

 private:
  // {permits: 63, waiting: 1}. The bit changes only under the lock of the queue, and while it is set there are no permits.
  static constexpr uint64_t kWaiting = 1, kOne = 2;
  FIBERTHREAD_API int acquire_slow(uint64_t deadline_ns);
  FIBERTHREAD_API void release_slow(uint64_t n);

  std::atomic<uint64_t> word_;
};

}  // namespace fiberthread
