// SPDX-License-Identifier: MIT
// WaitGroup, Latch and Barrier: waiting until other threads have come so far.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "deadline.h"

namespace fiberthread {

struct Waiter;

// Counts what is still to be done. It may be used again. Cost: add() and done() are one compare-and-swap, and wait() is one load, if no
// thread must wait or be woken. Fibers and foreign threads may call all members. Zero-filled memory is an empty group. It may be destroyed
// once a wait() that the last done() ended has returned, even if that done() has not.
class WaitGroup {
 public:
  constexpr WaitGroup() = default;
  explicit constexpr WaitGroup(uint32_t n) : word_(uint64_t{n} * kOne) {}
  WaitGroup(const WaitGroup&) = delete;
  WaitGroup& operator=(const WaitGroup&) = delete;
  FIBERTHREAD_API ~WaitGroup();

  // Adds `n` to the count, which must not become negative nor more than 2^32 - 1. When it becomes 0, wakes all waiters. Fibers and foreign
  // threads. Never parks.
  FIBERTHREAD_API void add(int64_t n = 1);
  // Counts one down. Fibers and foreign threads. Never parks.
  void done() { add(-1); }
  // Waits until the count has been 0 at some moment of the call, and returns 0. ETIMEDOUT at `deadline_ns` on CLOCK_MONOTONIC or after
  // `timeout_ns` nanoseconds. ECANCELED: the caller was cancelled. Fibers and foreign threads. May park.
  int wait() { return wait_until(kForever); }
  int wait_until(uint64_t deadline_ns) { return count() == 0 ? 0 : wait_slow(deadline_ns); }
  int wait_for(uint64_t timeout_ns) { return count() == 0 ? 0 : wait_slow(deadline_after(timeout_ns)); }
  // Returns the count. Acquire: a thread that sees 0 sees what was done before. Fibers and foreign threads. Never parks.
  uint32_t count() const { return static_cast<uint32_t>(word_.load(std::memory_order_acquire) / kOne); }

 private:
  // {number of times that the count became 0: 31, count: 32, waiting: 1}
  static constexpr uint64_t kWaiting = 1, kOne = 2, kTime = uint64_t{1} << 33;
  FIBERTHREAD_API int wait_slow(uint64_t deadline_ns);

  std::atomic<uint64_t> word_{0};
};

// Counts down to 0 once. The names are those of std::latch. Fibers and foreign threads may call all members. It may be destroyed like a
// WaitGroup.
class Latch {
 public:
  explicit constexpr Latch(uint32_t n) : group_(n) {}

  // Counts down by `n`, at most by what is left. At 0, wakes all waiters. Fibers and foreign threads. Never parks.
  void count_down(uint32_t n = 1) { group_.add(-int64_t{n}); }
  // Returns whether the count is 0. Fibers and foreign threads. Never parks.
  bool try_wait() const { return group_.count() == 0; }
  // Waits until the count is 0, and returns 0. ETIMEDOUT at `deadline_ns` on CLOCK_MONOTONIC or after `timeout_ns` nanoseconds. ECANCELED:
  // the caller was cancelled. Fibers and foreign threads. May park.
  int wait() { return group_.wait(); }
  int wait_until(uint64_t deadline_ns) { return group_.wait_until(deadline_ns); }
  int wait_for(uint64_t timeout_ns) { return group_.wait_for(timeout_ns); }
  // Counts down by `n` and waits. The caller has counted down whatever is returned. Errors and callers as of wait(). May park.
  int arrive_and_wait(uint32_t n = 1) {
    count_down(n);
    return wait();
  }

 private:
  WaitGroup group_;
};

// Lets `n` threads go on when all have arrived, phase after phase. The names are those of std::barrier. Fibers and foreign threads may call
// all members. It may be destroyed once all threads have returned from the wait of the last phase. If all of them came by
// arrive_and_wait…(), the first that returns may destroy it.
class Barrier {
 public:
  using Phase = uint32_t;

  // Makes a barrier for `n` threads. The thread that arrives last calls completion(context), before the others go on. They go on only when
  // it returns: no jump, no exception and no end of the thread may leave it, not even by a signal handler.
  explicit constexpr Barrier(uint32_t n, void (*completion)(void*) = nullptr, void* context = nullptr)
      : word_(n), expected_(n), completion_(completion), context_(context) {}
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;
  FIBERTHREAD_API ~Barrier();

  // Counts the caller as arrived, and returns the phase to wait for. Fibers and foreign threads. Never parks, but a completion may.
  FIBERTHREAD_API Phase arrive();
  // Counts the caller as arrived. From the next phase on the barrier expects one thread less. Fibers and foreign threads. Never parks, but
  // a completion may.
  FIBERTHREAD_API void arrive_and_drop();
  // Waits until the phase is over, and returns 0. ETIMEDOUT at `deadline_ns` on CLOCK_MONOTONIC, or ECANCELED: the caller still counts as
  // arrived, and may wait again. Fibers and foreign threads. May park.
  int wait(Phase phase) { return wait_until(phase, kForever); }
  FIBERTHREAD_API int wait_until(Phase phase, uint64_t deadline_ns);
  // Counts the caller as arrived and waits until the phase is over. ETIMEDOUT at `deadline_ns` on CLOCK_MONOTONIC or after `timeout_ns`
  // nanoseconds, or ECANCELED: the caller does not count as arrived any more. A completion that has begun is waited for. Fibers and foreign
  // threads. May park.
  int arrive_and_wait() { return arrive_and_wait_until(kForever); }
  FIBERTHREAD_API int arrive_and_wait_until(uint64_t deadline_ns);
  int arrive_and_wait_for(uint64_t timeout_ns) { return arrive_and_wait_until(deadline_after(timeout_ns)); }

 private:
  Phase arrive(bool drops, Waiter* waiter);

  // {phase: 32, still to arrive: 32}. It changes under the lock of the queue only, and so does expected_.
  std::atomic<uint64_t> word_;
  uint32_t expected_;
  void (*completion_)(void*);
  void* context_;
};

}  // namespace fiberthread
