// SPDX-License-Identifier: MIT
// Mutex, which is handed over in the order of arrival, and ConditionVariable, which goes with it.
//
// Cost: uncontended lock + unlock is two compare-and-swaps; a contended hand-over is one park and one unpark. Fairness: strictly FIFO. A
// thread that unlocks while others wait makes the first waiter the owner, and no other thread comes in between. So it is for short critical
// sections that no thread must be kept from. Under heavy contention by threads on several CPUs a FiberMutex is faster, because it lets
// other threads in while the woken one is on its way.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "deadline.h"

namespace fiberthread {

struct MutexWaiter;
class ConditionVariable;

// Lockable as the C++ standard has it ([thread.req.lockable]): fits std::lock_guard, std::unique_lock, std::condition_variable_any. Not
// recursive: a thread that locks it twice waits for ever. Fibers and foreign threads may call all members; signal handlers must not.
// Zero-filled memory is an unlocked mutex. The last owner may destroy the mutex after it has unlocked it.
class Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  FIBERTHREAD_API ~Mutex();

  // Waits until the mutex is the caller's. Cancellation does not end the wait. Fibers and foreign threads. May park.
  void lock() {
    if (!try_lock()) lock_slow();
  }
  // Locks the mutex if it is free, and returns whether it did. It does not fail otherwise. Fibers and foreign threads. Never parks.
  bool try_lock() {
    uintptr_t free = kFree;
    // Acquire, paired with the release in unlock(): the caller sees the writes of the last owner.
    return state_.compare_exchange_strong(free, kLocked, std::memory_order_acquire, std::memory_order_relaxed);
  }
  // Unlocks the mutex, or hands it to the first waiter. The owner may leave the call to another fiber. Fibers and foreign threads. Never
  // parks.
  void unlock() {
    uintptr_t alone = kLocked;
    if (first_ || !state_.compare_exchange_strong(alone, kFree, std::memory_order_release, std::memory_order_relaxed)) unlock_slow();
  }

 private:
  friend class ConditionVariable;
  static constexpr uintptr_t kFree = 0, kLocked = 1;
  FIBERTHREAD_API void lock_slow();
  FIBERTHREAD_API void unlock_slow();
  bool lock_or_queue(MutexWaiter& w);

  // Free, locked, or locked and the latest waiter. Each waiter points to the one that came before it. The owner takes all of them at once
  // and reverses their order into `first_`, which only the owner touches.
  std::atomic<uintptr_t> state_{kFree};
  MutexWaiter* first_ = nullptr;
};

// Fibers and foreign threads may call all members; signal handlers must not. A notified waiter owns the mutex when it runs: the
// notification moves it to the queue of the mutex, and wakes only a waiter that gets the mutex. The order in which waiters are woken is not
// specified. The object may be destroyed once all waiters have been notified, even if they have not returned yet.
class ConditionVariable {
 public:
  constexpr ConditionVariable() = default;
  ConditionVariable(const ConditionVariable&) = delete;
  ConditionVariable& operator=(const ConditionVariable&) = delete;
  FIBERTHREAD_API ~ConditionVariable();

  // Unlocks `m`, which the caller owns, waits for a notification and locks `m` again, whatever is returned. The caller is queued before the
  // mutex is free, so it does not miss a notification by a thread that locks the mutex afterwards. 0, ETIMEDOUT at `deadline_ns` on
  // CLOCK_MONOTONIC or after `timeout_ns` nanoseconds, or ECANCELED: the caller was cancelled. There are no spurious wake-ups, but the
  // condition may have changed again. Fibers and foreign threads. Parks.
  FIBERTHREAD_API int wait_until(Mutex& m, uint64_t deadline_ns);
  int wait_for(Mutex& m, uint64_t timeout_ns) { return wait_until(m, deadline_after(timeout_ns)); }
  int wait(Mutex& m) { return wait_until(m, kForever); }

  // Waits like the functions above until predicate(), which is called with the mutex held, is true. Then it returns 0, even if another
  // event ended the wait at the same time.
  template <class Predicate>
  int wait_until(Mutex& m, uint64_t deadline_ns, Predicate predicate) {
    while (!predicate())
      if (int e = wait_until(m, deadline_ns)) return predicate() ? 0 : e;
    return 0;
  }
  template <class Predicate>
  int wait_for(Mutex& m, uint64_t timeout_ns, Predicate predicate) {
    return wait_until(m, deadline_after(timeout_ns), predicate);
  }
  template <class Predicate>
  int wait(Mutex& m, Predicate predicate) {
    return wait_until(m, kForever, predicate);
  }

  // The same functions with a std::unique_lock<Mutex> that owns its mutex.
  template <class UniqueLock, class... Rest>
  auto wait(UniqueLock& lock, Rest... rest) -> decltype(wait(*lock.mutex(), rest...)) {
    return wait(*lock.mutex(), rest...);
  }
  template <class UniqueLock, class... Rest>
  auto wait_for(UniqueLock& lock, uint64_t timeout_ns, Rest... rest) -> decltype(wait_for(*lock.mutex(), timeout_ns, rest...)) {
    return wait_for(*lock.mutex(), timeout_ns, rest...);
  }
  template <class UniqueLock, class... Rest>
  auto wait_until(UniqueLock& lock, uint64_t deadline_ns, Rest... rest) -> decltype(wait_until(*lock.mutex(), deadline_ns, rest...)) {
    return wait_until(*lock.mutex(), deadline_ns, rest...);
  }

  // Wakes one waiter, or all waiters. The caller need not hold the mutex. Fibers and foreign threads. Never parks.
  void notify_one() {
    if (waiting_.load(std::memory_order_relaxed)) notify(false);
  }
  void notify_all() {
    if (waiting_.load(std::memory_order_relaxed)) notify(true);
  }

 private:
  FIBERTHREAD_API void notify(bool all);

  // Each waiter sets it before it unlocks the mutex. So a thread that notifies after it has held the mutex sees it. May be left over.
  std::atomic<uint64_t> waiting_{0};
};

}  // namespace fiberthread
