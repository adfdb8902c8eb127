// SPDX-License-Identifier: MIT
// Semaphore: a number of permits (E. W. Dijkstra). The names are those of the C++ standard.
//
// Cost: acquire and release without waiting are one compare-and-swap each. Fairness: FIFO. Permits that are released while threads wait go
// to the earliest waiters, and are never free in between.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "deadline.h"

namespace fiberthread {

// Fibers and foreign threads may call all members. Signal handlers may call release(), try_acquire() and available(), once the program has
// made its first thread. The thread that acquired the last permit may destroy the semaphore.
class Semaphore {
 public:
  // Makes a semaphore with this number of permits, at most 2^62.
  explicit constexpr Semaphore(uint64_t permits) : word_(permits * kOne) {}
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;
  FIBERTHREAD_API ~Semaphore();

  // Takes a permit, or waits until there is one, and returns 0. ECANCELED: the caller was cancelled, and no permit was taken. Fibers and
  // foreign threads. May park.
  int acquire() { return acquire_until(kForever); }
  // Waits like acquire(), but returns ETIMEDOUT at `deadline_ns` on CLOCK_MONOTONIC or after `timeout_ns` nanoseconds. A call that need not
  // wait looks neither at the time nor at cancellation. Fibers and foreign threads. May park.
  int acquire_until(uint64_t deadline_ns) { return try_acquire() ? 0 : acquire_slow(deadline_ns); }
  int acquire_for(uint64_t timeout_ns) { return try_acquire() ? 0 : acquire_slow(deadline_after(timeout_ns)); }
  // Takes a permit if there is one and no thread waits, and returns whether it did. Fibers, foreign threads and signal handlers. Never
  // parks.
  bool try_acquire() {
    uint64_t w = word_.load(std::memory_order_relaxed);
    // Acquire, paired with the release in release(): the caller sees what was done before the release.
    while (w >= kOne && !(w & kWaiting))
      if (word_.compare_exchange_weak(w, w - kOne, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    return false;
  }
  // Gives `n` permits, first to the threads that wait. Fibers, foreign threads and signal handlers. Never parks.
  void release(uint64_t n = 1) {
    uint64_t w = word_.load(std::memory_order_relaxed);
    while (!(w & kWaiting))
      if (word_.compare_exchange_weak(w, w + n * kOne, std::memory_order_release, std::memory_order_relaxed)) return;
    release_slow(n);
  }
  // Returns the number of free permits. May be out of date at once. Fibers, foreign threads and signal handlers. Never parks.
  uint64_t available() const { return word_.load(std::memory_order_relaxed) / kOne; }

 private:
  // {permits: 63, waiting: 1}. The bit changes only under the lock of the queue. While it is set there are no permits.
  static constexpr uint64_t kWaiting = 1, kOne = 2;
  FIBERTHREAD_API int acquire_slow(uint64_t deadline_ns);
  FIBERTHREAD_API void release_slow(uint64_t n);

  std::atomic<uint64_t> word_;
};

}  // namespace fiberthread
