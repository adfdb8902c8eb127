// SPDX-License-Identifier: MIT
#include "fiberthread/mutex.h"

#include <errno.h>

#include "sched/chaos.h"
#include "sync/checks.h"
#include "sync/parking_lot.h"
#include "sched/wait.h"

namespace fiberthread {

// One wait, on the stack of the waiting thread.
struct MutexWaiter {
  FiberRecord* fiber;
  std::atomic<uint32_t>* signaled;  // set when the mutex is the waiter's
  MutexWaiter* next = nullptr;      // the waiter that came before; in the list of first_, the one that came after
};

namespace {

// Wakes w, which owns the mutex. Setting `signaled` is the last touch: the waiter may be gone at once.
void hand_over(MutexWaiter& w) {
  FiberRecord* f = w.fiber;
  chaos_delay();
  w.signaled->store(1, std::memory_order_release);
  unpark(f);
}

}  // namespace

Mutex::~Mutex() {
  if (!kDebugChecks) return;
  uintptr_t s = state_.load(std::memory_order_relaxed);
  check(s != kDestroyedWord, "Mutex", this, "is destroyed twice");
  check(s == kFree, "Mutex", this, "is destroyed while it is locked");
  state_.store(kDestroyedWord, std::memory_order_relaxed);
}

// Locks the mutex for w and returns true, or queues w and returns false. w's owner learns of it by `signaled` alone. On true, the caller
// sets that.
bool Mutex::lock_or_queue(MutexWaiter& w) {
  uintptr_t s = state_.load(std::memory_order_relaxed);
  for (;;) {
    check(s != kDestroyedWord, "Mutex", this, "is locked after it was destroyed");
    if (s == kFree) {
      if (state_.compare_exchange_weak(s, kLocked, std::memory_order_acquire, std::memory_order_relaxed)) return true;
      continue;
    }
    w.next = s == kLocked ? nullptr : reinterpret_cast<MutexWaiter*>(s);
    chaos_delay();
    // Release: the owner that takes the list sees w.
    if (state_.compare_exchange_weak(s, reinterpret_cast<uintptr_t>(&w), std::memory_order_release, std::memory_order_relaxed))
      return false;
  }
}

void Mutex::lock_slow() {
  FiberRecord* me = self();
  std::atomic<uint32_t> signaled{0};
  MutexWaiter w{me, &signaled};
  me->wait.pins++;
  if (lock_or_queue(w)) wait_over(me);
  else wait_signaled(me, signaled, {"Mutex", this}, kNever, 0, [] { return false; });
}

void Mutex::unlock_slow() {
  Busy busy;  // until the waiter is woken: a handler in between might not return, and the waiters that were taken would wait for ever
  MutexWaiter* first = first_;
  if (!first) {
    uintptr_t s = kLocked;
    if (state_.compare_exchange_strong(s, kFree, std::memory_order_release, std::memory_order_relaxed)) return;
    check(s != kDestroyedWord, "Mutex", this, "is unlocked after it was destroyed");
    check(s != kFree, "Mutex", this, "is unlocked but was not locked");
    if (s == kFree) return;
    // Acquire, paired with the release of each push. All waiters up to now are ours, because only the owner takes them.
    s = state_.exchange(kLocked, std::memory_order_acquire);
    for (auto* w = reinterpret_cast<MutexWaiter*>(s); w;) {
      MutexWaiter* before = w->next;
      w->next = first;
      first = w;
      w = before;
    }
  }
  first_ = first->next;
  hand_over(*first);
}

ConditionVariable::~ConditionVariable() {
  if (!kDebugChecks) return;
  check(waiting_.load(std::memory_order_relaxed) != kDestroyedWord, "ConditionVariable", this, "is destroyed twice");
  {
    LockedQueue q(this);
    check(!q.first(), "ConditionVariable", this, "is destroyed while somebody waits");
  }
  waiting_.store(kDestroyedWord, std::memory_order_relaxed);
}

int ConditionVariable::wait_until(Mutex& m, uint64_t deadline_ns) {
  check(waiting_.load(std::memory_order_relaxed) != kDestroyedWord, "ConditionVariable", this, "is waited for after it was destroyed");
  Waiter w;
  MutexWaiter of_mutex{w.fiber, &w.signaled};
  w.requeue_to = &m;
  w.token = reinterpret_cast<uint64_t>(&of_mutex);
  auto enqueue = [&] {
    waiting_.store(1, std::memory_order_relaxed);  // under the bucket lock, as it is cleared; the mutex orders it for other threads
    return true;
  };
  WakeReason r = park(this, w, enqueue, [&] { m.unlock(); }, {"ConditionVariable", this}, plain_deadline(deadline_ns), kInterruptEnd);
  // From here on the object may be gone.
  if (r == WakeReason::Woken) return 0;  // the caller owns the mutex
  m.lock();
  return r == WakeReason::TimedOut ? ETIMEDOUT : ECANCELED;
}

void ConditionVariable::notify(bool all) {
  check(waiting_.load(std::memory_order_relaxed) != kDestroyedWord, "ConditionVariable", this, "is notified after it was destroyed");
  Busy busy;  // until all that were taken out are handed over, as in Mutex::unlock_slow()
  Waiter* first = nullptr;
  Waiter** tail = &first;
  {
    LockedQueue q(this);
    for (Waiter* w = q.first(); w && (all || !first); w = q.first()) {
      q.remove(*w);
      w->next = nullptr;
      *tail = w;
      tail = &w->next;
    }
    if (!q.first()) waiting_.store(0, std::memory_order_relaxed);
  }
  for (Waiter* w = first; w;) {
    Waiter* next = w->next;
    auto* m = static_cast<Mutex*>(const_cast<void*>(w->requeue_to));
    auto& of_mutex = *reinterpret_cast<MutexWaiter*>(w->token);
    if (m->lock_or_queue(of_mutex)) hand_over(of_mutex);
    w = next;
  }
}

}  // namespace fiberthread
