// SPDX-License-Identifier: MIT
#include "fiberthread/fiber_mutex.h"

#include "sched/chaos.h"
#include "sched/fiber.h"
#include "sync/parking_lot.h"
#include "sched/wait.h"

namespace fiberthread {
namespace {

constexpr int kSpins = 6;  // failed attempts while the owner runs
constexpr uint64_t kPatienceNs = 1'000'000;
constexpr int kPatienceRaces = 16;
constexpr uint32_t kWantsHandOver = 1;  // Waiter::tag

// A hint only: the owner's record is readable for ever, but its fields may be out of date.
bool runs_elsewhere(const FiberRecord* owner, const FiberRecord* me) {
  return owner->run.state.load(std::memory_order_relaxed) == State::Running &&
         (owner->run.kernel || me->run.kernel || __atomic_load_n(&owner->run.worker, __ATOMIC_RELAXED) != me->run.worker);
}

static_assert(alignof(FiberRecord) > 1);

}  // namespace

FIBERTHREAD_STOPPABLE void FiberMutex::lock() { lock(self()); }
FIBERTHREAD_STOPPABLE bool FiberMutex::try_lock() { return try_lock(self()); }
bool FiberMutex::try_lock_until(uint64_t deadline_ns) { return try_lock_until(self(), plain_deadline(deadline_ns)); }
FIBERTHREAD_STOPPABLE void FiberMutex::unlock() { unlock(self()); }

bool FiberMutex::lock_slow(FiberRecord* me, uint64_t deadline, uint64_t token) {
  uint64_t first = 0;  // time of the first wait
  int races = 0, spins = 0;
  for (;;) {
    uint64_t w = word_.load(std::memory_order_relaxed);
    if (w == 0) {
      uint64_t mine = value(me) | (token & kMore ? kHasWaiters : 0);
      if (word_.compare_exchange_weak(w, mine, std::memory_order_acquire, std::memory_order_relaxed)) return true;
      continue;
    }
    if (w == kDestroyedWord) report_misuse("FiberMutex", this, "is locked after it was destroyed");
    if (!(w & kHasWaiters)) {
      if (spins < kSpins && races == 0 && !(token & kMore) && runs_elsewhere(reinterpret_cast<FiberRecord*>(w), me)) {
        // Back-off: each look takes the cache line from the owner, which is about to write it.
        for (int i = 1 << spins++; i > 0; i--) cpu_relax();
        continue;
      }
      // Relaxed: the bucket lock orders it against unlock_slow(). From here on the owner must wake the queued waiters.
      if (!word_.compare_exchange_weak(w, w | kHasWaiters, std::memory_order_relaxed)) continue;
    }
    chaos_delay();
    Waiter waiter;
    if (first == 0) {
      first = now_ns();
    } else {
      waiter.in_front = races > 0;
      if (races >= kPatienceRaces || (races > 0 && now_ns() - first > kPatienceNs)) waiter.tag = kWantsHandOver;
    }
    auto still_held = [this] { return word_.load(std::memory_order_relaxed) & kHasWaiters; };
    switch (park(this, waiter, still_held, {"mutex", this, reinterpret_cast<FiberRecord*>(w & ~kHasWaiters)}, deadline)) {
      case WakeReason::Woken:
        if (waiter.token & kHandedOver) return true;
        token = waiter.token;
        races++;
        break;
      case WakeReason::Invalid: break;
      default: return false;  // the bit may stay without a waiter, which costs one slow unlock
    }
  }
}

void FiberMutex::unlock_slow() {
  uint64_t w = word_.load(std::memory_order_relaxed);
  while (!(w & kHasWaiters)) {  // the caller is not the owner, or the bit came and went
    if (w == 0) return;
    if (word_.compare_exchange_weak(w, 0, std::memory_order_release, std::memory_order_relaxed)) return;
  }
  WakeList list;
  {
    LockedQueue q(this);
    // Plain stores: while the mutex is held with the bit set, only its owner changes the word. After the store the mutex may be gone.
    Waiter* head = q.first();
    if (!head) {
      word_.store(0, std::memory_order_release);
      return;
    }
    bool more = head->next;
    if (head->tag == kWantsHandOver) {
      head->token = kHandedOver;
      word_.store(value(head->fiber) | (more ? kHasWaiters : 0), std::memory_order_release);
    } else {
      head->token = more ? kMore : 0;
      word_.store(0, std::memory_order_release);
    }
    if (head->token && head->requeued) awaited_by_others(head->fiber);
    list.add(q, *head);
  }
  list.wake_all();
}

bool FiberMutex::expect_waiters() {
  uint64_t w = word_.load(std::memory_order_relaxed);
  while (w != 0)
    if (word_.compare_exchange_weak(w, w | kHasWaiters, std::memory_order_relaxed)) return true;
  return false;
}

}  // namespace fiberthread
