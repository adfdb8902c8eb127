// SPDX-License-Identifier: MIT
// FiberFutex: a counter to wait on. Cost: post() without waiters is one CAS, wait() for a count that has come is one load. It wakes all
// waiters at once, in the order of arrival. Zero-filled memory is a futex at 0.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "deadline.h"
#include "misuse.h"

namespace fiberthread {

// Fibers and foreign threads may call all members. Signal handlers may call get(), and, once the program has made its first thread, post()
// and postOne(). A futex may be destroyed as soon as a wait that a post ended has returned, even if that post has not.
class FiberFutex {
 public:
  constexpr FiberFutex() = default;
  FiberFutex(const FiberFutex&) = delete;
  FiberFutex& operator=(const FiberFutex&) = delete;
#ifdef FIBERTHREAD_DEBUG_CHECKS
  ~FiberFutex() {
    if (word_.load(std::memory_order_relaxed) == kDestroyedWord) report_misuse("FiberFutex", this, "is destroyed twice");
    if (waiters()) report_misuse("FiberFutex", this, "is destroyed while somebody waits");
    word_.store(kDestroyedWord, std::memory_order_relaxed);
  }
#endif

  // Returns the count. Acquire: the caller sees what happened before the posts that are counted. Fibers, foreign threads and signal
  // handlers. Never parks.
  uint64_t get() const { return word_.load(std::memory_order_acquire) >> 1; }

  // Waits until get() >= token, and returns 0. ECANCELED: the caller was cancelled. Fibers and foreign threads. May park.
  int wait(uint64_t token) { return waitUntil(token, kForever); }
  // Waits for the next post. Errors and callers as of wait(token). May park.
  int wait() { return wait(get() + 1); }
  // Waits until `deadline_ns` on CLOCK_MONOTONIC, or for `timeout_ns` nanoseconds from now, at most: then ETIMEDOUT. Returns 0 in any case
  // if the count has been reached by then. Other errors and callers as of wait(token). May park.
  int waitUntil(uint64_t token, uint64_t deadline_ns) { return reached(token) ? 0 : wait_slow(token, deadline_ns); }
  FIBERTHREAD_API int waitWithTimeout(uint64_t token, uint64_t timeout_ns);

  // Counts one up and wakes all waiters. A waiter whose token is still ahead waits again. Callers: see the class. Never parks.
  void post() {
    uint64_t w = word_.load(std::memory_order_relaxed);
#ifdef FIBERTHREAD_DEBUG_CHECKS
    if (w == kDestroyedWord) report_misuse("FiberFutex", this, "is posted after it was destroyed");
#endif
    while (!(w & kHasWaiters))
      if (word_.compare_exchange_weak(w, w + kOne, std::memory_order_release, std::memory_order_relaxed)) return;
    post_slow();
  }
  // Counts one up and wakes one waiter: the earliest of those whose token has been reached. Callers: see the class. Never parks.
  FIBERTHREAD_API void postOne();

 private:
  static constexpr uint64_t kHasWaiters = 1, kOne = 2;  // {counter: 63, hasWaiters: 1}
  bool reached(uint64_t token) const {
    uint64_t w = word_.load(std::memory_order_acquire);
#ifdef FIBERTHREAD_DEBUG_CHECKS
    if (w == kDestroyedWord) report_misuse("FiberFutex", this, "is waited for after it was destroyed");
#endif
    return w >> 1 >= token;
  }
  FIBERTHREAD_API int wait_slow(uint64_t token, uint64_t deadline_ns);
  FIBERTHREAD_API void post_slow();
  FIBERTHREAD_API bool waiters() const;

  std::atomic<uint64_t> word_{0};
};

}  // namespace fiberthread
