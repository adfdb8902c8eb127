// SPDX-License-Identifier: MIT
#include "fiberthread/wait_group.h"

#include "sync/checks.h"
#include "sync/park_error.h"

namespace fiberthread {
namespace {

void take_all(LockedQueue& q, WakeList& list) {
  while (Waiter* w = q.first()) list.add(q, *w);
}

}  // namespace

// ---- WaitGroup ----

WaitGroup::~WaitGroup() {
  if (!kDebugChecks) return;
  check_unused(word_.load(std::memory_order_relaxed), "WaitGroup", this);
  word_.store(kDestroyedWord, std::memory_order_relaxed);
}

void WaitGroup::add(int64_t n) {
  uint64_t w = word_.load(std::memory_order_relaxed);
  auto next = [&] {
    int64_t count = static_cast<uint32_t>(w / kOne) + n;
    check(w != kDestroyedWord, "WaitGroup", this, "is used after it was destroyed");
    check(count >= 0 && count <= UINT32_MAX, "WaitGroup", this, "counts below 0, or too far");
    uint64_t time = w & ~(kTime - 1);
    return count ? time | static_cast<uint64_t>(count) * kOne | (w & kWaiting) : time + kTime;
  };
  for (;;) {
    uint64_t to = next();
    if (w & kWaiting && !(to & kWaiting)) break;
    if (word_.compare_exchange_weak(w, to, std::memory_order_acq_rel, std::memory_order_relaxed)) return;
  }
  WakeList list;
  {
    // The waiters are taken out under this lock before the count becomes 0. From then on the group may be gone, and another object with
    // waiters of its own in its place.
    LockedQueue q(this);
    w = word_.load(std::memory_order_relaxed);
    uint64_t to = next();
    while (!word_.compare_exchange_weak(w, to, std::memory_order_acq_rel, std::memory_order_relaxed)) to = next();
    if (w & kWaiting && !(to & kWaiting)) take_all(q, list);
  }
  list.wake_all();
}

int WaitGroup::wait_slow(uint64_t deadline_ns) {
  uint64_t first = word_.load(std::memory_order_acquire);
  check(first != kDestroyedWord, "WaitGroup", this, "is waited for after it was destroyed");
  Waiter waiter;
  auto must_wait = [&] {
    uint64_t w = word_.load(std::memory_order_acquire);
    for (;;) {
      bool same_time = (w ^ first) < kTime;
      if (!same_time || static_cast<uint32_t>(w / kOne) == 0) return false;
      if (w & kWaiting || word_.compare_exchange_weak(w, w | kWaiting, std::memory_order_acquire)) return true;
    }
  };
  return park_error(this, waiter, must_wait, {"WaitGroup", this}, deadline_ns);
}

// ---- Barrier ----

Barrier::~Barrier() {
  if (!kDebugChecks) return;
  check_unused(word_.load(std::memory_order_relaxed), "Barrier", this);
  word_.store(kDestroyedWord, std::memory_order_relaxed);
}

// Counts one arrival. If others are still to come, queues `waiter` in the same step. Afterwards the phase may end at any time, and the
// barrier be gone.
Barrier::Phase Barrier::arrive(bool drops, Waiter* waiter) {
  Phase phase;
  WakeList list;
  // Ends the phase. Release, and the lock of the queue: the waiters see what was done before the arrivals. Our last touch.
  auto next_phase = [&](LockedQueue& q) {
    take_all(q, list);
    word_.store(uint64_t{phase + 1} << 32 | expected_, std::memory_order_release);
  };
  bool completes = false;
  {
    LockedQueue q(this);
    uint64_t w = word_.load(std::memory_order_relaxed);
    check(w != kDestroyedWord, "Barrier", this, "is used after it was destroyed");
    check(static_cast<uint32_t>(w) > 0, "Barrier", this, "has more arrivals than it was made for");
    phase = static_cast<Phase>(w >> 32);
    if (drops) expected_--;
    bool last = static_cast<uint32_t>(w) == 1;
    // In one step with the last arrival: a handler that came between the two might not return, and all others would wait for ever.
    if (last && !completion_) {
      next_phase(q);
    } else {
      word_.store(w - 1, std::memory_order_relaxed);
      if (waiter && !last) q.add(*waiter);
      completes = last;
    }
  }
  if (completes) {
    // All have arrived. Until the next phase begins no other thread changes anything.
    completion_(context_);
    LockedQueue q(this);
    next_phase(q);
  }
  list.wake_all();
  return phase;
}

Barrier::Phase Barrier::arrive() { return arrive(false, nullptr); }

void Barrier::arrive_and_drop() { arrive(true, nullptr); }

int Barrier::wait_until(Phase phase, uint64_t deadline_ns) {
  Waiter w;
  auto must_wait = [&] { return word_.load(std::memory_order_acquire) >> 32 == phase; };
  check(word_.load(std::memory_order_relaxed) != kDestroyedWord, "Barrier", this, "is waited for after it was destroyed");
  if (!must_wait()) return 0;
  return park_error(this, w, must_wait, {"Barrier", this}, deadline_ns);
}

int Barrier::arrive_and_wait_until(uint64_t deadline_ns) {
  Waiter w;
  arrive(false, &w);
  if (!w.address) return 0;  // the caller arrived last
  auto withdraw = [&] {
    LockedQueue q(this);
    // The thread that ends the phase takes out all waiters before its last touch. So while we are queued, the barrier is there.
    if (!w.bucket.load(std::memory_order_relaxed)) return false;
    uint64_t now = word_.load(std::memory_order_relaxed);
    if (static_cast<uint32_t>(now) == 0) return false;  // too late: all have arrived, the caller too
    word_.store(now + 1, std::memory_order_relaxed);
    q.remove(w);
    return true;
  };
  switch (wait_signaled(w.fiber, w.signaled, {"Barrier", this}, plain_deadline(deadline_ns), kInterruptEnd, withdraw)) {
    case WakeReason::TimedOut: return ETIMEDOUT;
    case WakeReason::Interrupted: return ECANCELED;
    default: return 0;
  }
}

}  // namespace fiberthread
