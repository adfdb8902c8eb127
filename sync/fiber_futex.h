// FiberFutex: a counter to wait on. Cost: post() without waiters is one CAS, wait() for a count that has come one load.
// Wakes in the order of arrival, all at once. Zero-filled memory is a futex at 0.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// Fibers and foreign threads; post() and post_one() also in signal handlers, and they never park. The futex may be
// destroyed as soon as a wait that a post ended has returned, even if that post has not.
class FiberFutex {
 public:
  constexpr FiberFutex() = default;
  FiberFutex(const FiberFutex&) = delete;

  // Acquire: what happened before the posts counted is seen.
  uint64_t get() const { return word_.load(std::memory_order_acquire) >> 1; }

  // Returns once get() >= token. False only if `deadline_ns` (now_ns()'s clock) came first.
  bool wait(uint64_t token, uint64_t deadline_ns = kNever) { return get() >= token || wait_slow(token, deadline_ns); }
  // The next post.
  void wait() { wait(get() + 1); }
  bool wait_until(uint64_t deadline_ns) { return wait(get() + 1, deadline_ns); }

  // Counts one up and wakes all waiters; those whose token is still ahead go on waiting.
  void post() {
    uint64_t w = word_.load(std::memory_order_relaxed);
    while (!word_.compare_exchange_weak(w, (w & ~kHasWaiters) + kOne, std::memory_order_release, std::memory_order_relaxed)) {
    }
    if (w & kHasWaiters) wake_all();
  }
  // Counts one up and wakes the waiter that came first among those whose token has been reached.
  void post_one();

 private:
  static constexpr uint64_t kHasWaiters = 1, kOne = 2;  // {counter: 63, hasWaiters: 1}
  bool wait_slow(uint64_t token, uint64_t deadline_ns);
  void wake_all();

  std::atomic<uint64_t> word_{0};
};

}  // namespace fiberthread
