// SPDX-License-Identifier: MIT
// Mutex, which hands itself over in the order of arrival, and ConditionVariable, which goes with it.
//
// Cost: uncontended lock + unlock is two compare-and-swaps; a contended hand-over one park and one unpark. Fairness: strictly FIFO: who
// unlocks while others wait makes the first of them the owner, and nobody comes in between. So it is for short sections that nobody
// must be kept from; a mutex under heavy contention by threads on several CPUs is faster as FiberMutex, which lets others in while the
// woken one is on its way.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "deadline.h"

namespace fiberthread {

struct MutexWaiter;
class ConditionVariable;

// Lockable as the C++ standard has it ([thread.req.lockable]): for std::lock_guard, std::unique_lock, std::condition_variable_any.
// Not recursive: locking it twice waits for ever. All members: fibers, bound fibers and foreign threads; not in signal handlers.
// Zero-filled memory is an unlocked mutex. It may be destroyed by who is its owner last, once it has unlocked it.
class Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  FIBERTHREAD_API ~Mutex();

  // May park. Not ended by cancellation.
  void lock() {
    if (!try_lock()) lock_slow();
  }
  // Never parks. False if it is held; it does not fail otherwise.
  bool try_lock() {
    uintptr_t free = kFree;
    // Acquire, with the release in unlock(): the last owner's writes are seen.
    return state_.compare_exchange_strong(free, kLocked, std::memory_order_acquire, std::memory_order_relaxed);
  }
  // By its owner, or by another fiber that it was left to. Never parks.
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

  // Free, locked, or locked and the waiter that came last: each points to the one that came before it. The owner takes them all
  // at once and turns them round into `first_`, which is its own alone.
  std::atomic<uintptr_t> state_{kFree};
  MutexWaiter* first_ = nullptr;
};

// All members: fibers, bound fibers and foreign threads; notify_one() and notify_all() never park. Those woken own the mutex when they
// run: a notification moves them to the mutex's queue and wakes only who gets it. The order in which waiters are woken is not
// specified. It may be destroyed once all waiters have been notified, even if they have not returned yet.
class ConditionVariable {
 public:
  constexpr ConditionVariable() = default;
  ConditionVariable(const ConditionVariable&) = delete;
  ConditionVariable& operator=(const ConditionVariable&) = delete;
  FIBERTHREAD_API ~ConditionVariable();

  // Gives `m`, which the caller owns, up, waits for a notification and owns it again, whatever is returned. The caller is
  // queued before the mutex is free, so a notification by who locks it afterwards is not missed. 0, ETIMEDOUT once `deadline_ns`
  // (CLOCK_MONOTONIC) has passed, or ECANCELED. Does not return without a reason, but the condition may have changed again.
  FIBERTHREAD_API int wait_until(Mutex& m, uint64_t deadline_ns);
  int wait_for(Mutex& m, uint64_t timeout_ns) { return wait_until(m, deadline_after(timeout_ns)); }
  int wait(Mutex& m) { return wait_until(m, kForever); }

  // The same until predicate(), which is called with the mutex held, is true: then 0, even if the wait was ended by something else
  // at the same time.
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

  // With a std::unique_lock<Mutex> that owns its mutex.
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

  // Wakes one of those that wait, or all.
  void notify_one() {
    if (waiting_.load(std::memory_order_relaxed)) notify(false);
  }
  void notify_all() {
    if (waiting_.load(std::memory_order_relaxed)) notify(true);
  }

 private:
  FIBERTHREAD_API void notify(bool all);

  // Set by each waiter before it gives the mutex up, so that who notifies after having held the mutex sees it. May be left over.
  std::atomic<uint64_t> waiting_{0};
};

}  // namespace fiberthread
