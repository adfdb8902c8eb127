// SPDX-License-Identifier: MIT
// FiberFutex: a counter to wait on. Cost: post() without waiters is one CAS, wait() for a count that has come one load.
// Wakes in the order of arrival, all at once. Zero-filled memory is a futex at 0.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "deadline.h"
#include "misuse.h"

namespace fiberthread {

// Fibers, bound fibers and foreign threads; post() and postOne() also in signal handlers, and they never park. The futex may be
// destroyed as soon as a wait that a post ended has returned, even if that post has not.
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

  // Acquire: what happened before the posts counted is seen.
  uint64_t get() const { return word_.load(std::memory_order_acquire) >> 1; }

  // Returns once get() >= token: 0. Or ECANCELED if the caller was cancelled. May park. Not in signal handlers.
  int wait(uint64_t token) { return waitUntil(token, kForever); }
  // For the next post.
  int wait() { return wait(get() + 1); }
  // The same until `deadline_ns` on CLOCK_MONOTONIC, or for `timeout_ns` from now: then ETIMEDOUT. A count that has been reached by
  // then is, in any case, 0.
  int waitUntil(uint64_t token, uint64_t deadline_ns) { return reached(token) ? 0 : wait_slow(token, deadline_ns); }
  FIBERTHREAD_API int waitWithTimeout(uint64_t token, uint64_t timeout_ns);

  // Counts one up and wakes all waiters; those whose token is still ahead go on waiting.
  void post() {
    uint64_t w = word_.load(std::memory_order_relaxed);
#ifdef FIBERTHREAD_DEBUG_CHECKS
    if (w == kDestroyedWord) report_misuse("FiberFutex", this, "is posted after it was destroyed");
#endif
    while (!(w & kHasWaiters))
      if (word_.compare_exchange_weak(w, w + kOne, std::memory_order_release, std::memory_order_relaxed)) return;
    post_slow();
  }
  // Counts one up and wakes the waiter that came first among those whose token has been reached.
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
