// SPDX-License-Identifier: MIT
// WaitGroup, Latch and Barrier: waiting until others have come so far.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "deadline.h"

namespace fiberthread {

struct Waiter;

// Counts what is still to be done; may be used again. Cost: add() and done() are one compare-and-swap, and wait() one load, if nobody
// must wait. All members: fibers, bound fibers and foreign threads; only wait…() park. Zero-filled memory is an empty group. It may be
// destroyed once a wait() that the last done() ended has returned, even if that done() has not.
class WaitGroup {
 public:
  constexpr WaitGroup() = default;
  explicit constexpr WaitGroup(uint32_t n) : word_(uint64_t{n} * kOne) {}
  WaitGroup(const WaitGroup&) = delete;
  WaitGroup& operator=(const WaitGroup&) = delete;
  FIBERTHREAD_API ~WaitGroup();

  // The count must not become negative, nor more than 2^32 - 1. When it becomes 0, all who wait go on.
  FIBERTHREAD_API void add(int64_t n = 1);
  void done() { add(-1); }
  // Until the count has been 0 at some moment of the call. 0, ETIMEDOUT or ECANCELED.
  int wait() { return wait_until(kForever); }
  int wait_until(uint64_t deadline_ns) { return count() == 0 ? 0 : wait_slow(deadline_ns); }
  int wait_for(uint64_t timeout_ns) { return count() == 0 ? 0 : wait_slow(deadline_after(timeout_ns)); }
  // Acquire: who sees 0 sees what was done before.
  uint32_t count() const { return static_cast<uint32_t>(word_.load(std::memory_order_acquire) / kOne); }

 private:
  // {times that it became 0: 31, count: 32, waiting: 1}
  static constexpr uint64_t kWaiting = 1, kOne = 2, kTime = uint64_t{1} << 33;
  FIBERTHREAD_API int wait_slow(uint64_t deadline_ns);

  std::atomic<uint64_t> word_{0};
};

// Counts down to 0 once. The names are those of std::latch.
class Latch {
 public:
  explicit constexpr Latch(uint32_t n) : group_(n) {}

  // By at most what is left.
  void count_down(uint32_t n = 1) { group_.add(-int64_t{n}); }
  bool try_wait() const { return group_.count() == 0; }
  // 0, ETIMEDOUT or ECANCELED.
  int wait() { return group_.wait(); }
  int wait_until(uint64_t deadline_ns) { return group_.wait_until(deadline_ns); }
  int wait_for(uint64_t timeout_ns) { return group_.wait_for(timeout_ns); }
  int arrive_and_wait(uint32_t n = 1) {
    count_down(n);
    return wait();
  }

 private:
  WaitGroup group_;
};

// Lets `n` on when all have arrived, phase after phase. The names are those of std::barrier. All members: fibers, bound fibers and foreign
// threads; wait…() and arrive_and_wait…() park. It may be destroyed once all have returned from the last phase's wait, or by the first
// that has, if all came by arrive_and_wait…().
class Barrier {
 public:
  using Phase = uint32_t;

  // completion(context) is called by who arrives last, before the others go on.
  explicit constexpr Barrier(uint32_t n, void (*completion)(void*) = nullptr, void* context = nullptr)
      : word_(n), expected_(n), completion_(completion), context_(context) {}
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;
  FIBERTHREAD_API ~Barrier();

  // Counts the caller as arrived, and returns what to wait for. Never parks; a completion may.
  FIBERTHREAD_API Phase arrive();
  // The same, and from the next phase on there is one less.
  FIBERTHREAD_API void arrive_and_drop();
  // Until the phase is over. 0, ETIMEDOUT or ECANCELED: the caller still counts as arrived, and may wait again.
  int wait(Phase phase) { return wait_until(phase, kForever); }
  FIBERTHREAD_API int wait_until(Phase phase, uint64_t deadline_ns);
  int arrive_and_wait() { return arrive_and_wait_until(kForever); }
  // With ETIMEDOUT and ECANCELED the caller does not count as arrived any more. A completion that has begun is waited for.
  FIBERTHREAD_API int arrive_and_wait_until(uint64_t deadline_ns);
  int arrive_and_wait_for(uint64_t timeout_ns) { return arrive_and_wait_until(deadline_after(timeout_ns)); }

 private:
  Phase arrive(bool drops, Waiter* waiter);

  // {phase: 32, still to arrive: 32}. All changes, and expected_, are under the lock of the queue.
  std::atomic<uint64_t> word_;
  uint32_t expected_;
  void (*completion_)(void*);
  void* context_;
};

}  // namespace fiberthread
