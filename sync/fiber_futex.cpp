// SPDX-License-Identifier: MIT
#include "fiberthread/fiber_futex.h"

#include <errno.h>

#include "sched/chaos.h"
#include "sched/fiber.h"
#include "sync/parking_lot.h"
#include "fiberthread/deadline.h"
#include "sched/wait.h"

namespace fiberthread {

int FiberFutex::wait_slow(uint64_t token, uint64_t deadline_ns) {
  const uint64_t deadline = plain_deadline(deadline_ns);
  for (int spins = 0;;) {
    uint64_t w = word_.load(std::memory_order_acquire);
    if (w >> 1 >= token) return 0;
    if (!(w & kHasWaiters)) {
      if (spins < 16 && (spins > 0 || !keeps_others_waiting())) {
        spins++;
        cpu_relax();
        continue;
      }
      if (!word_.compare_exchange_weak(w, w | kHasWaiters, std::memory_order_relaxed)) continue;
    }
    chaos_delay();
    Waiter waiter;
    waiter.token = token;
    // A post that clears the bit before we are queued finds no waiter. But then the bit is clear here, and we do not wait.
    auto ahead = [&] {
      uint64_t now = word_.load(std::memory_order_relaxed);
      return now & kHasWaiters && now >> 1 < token;
    };
    switch (park(this, waiter, ahead, {"futex", this}, deadline, kInterruptEnd)) {
      case WakeReason::TimedOut: return get() >= token ? 0 : ETIMEDOUT;
      case WakeReason::Interrupted: return get() >= token ? 0 : ECANCELED;
      default: break;
    }
  }
}

int FiberFutex::waitWithTimeout(uint64_t token, uint64_t timeout_ns) {
  return reached(token) ? 0 : wait_slow(token, deadline_after(timeout_ns));
}

bool FiberFutex::waiters() const {
  LockedQueue q(this);
  return q.first();
}

void FiberFutex::post_slow() {
  WakeList list;
  {
    LockedQueue q(this);
    while (Waiter* first = q.first()) list.add(q, *first);
    // The count is the last touch, under the lock. From then on the futex may be gone, and another object with waiters of its own in its
    // place.
    uint64_t w = word_.load(std::memory_order_relaxed);
    while (!word_.compare_exchange_weak(w, (w & ~kHasWaiters) + kOne, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }
  list.wake_all();
}

void FiberFutex::postOne() {
  uint64_t w = word_.load(std::memory_order_relaxed);
  while (!(w & kHasWaiters))
    if (word_.compare_exchange_weak(w, w + kOne, std::memory_order_release, std::memory_order_relaxed)) return;
  WakeList list;
  {
    LockedQueue q(this);
    Waiter* first = q.first();
    w = word_.load(std::memory_order_relaxed);
    while (first && first->token > (w >> 1) + 1) first = first->next;
    if (first) list.add(q, *first);
    uint64_t bit = q.first() ? kHasWaiters : 0;
    // The count is the last touch, under the lock. A waiter that sees it may destroy the futex.
    while (!word_.compare_exchange_weak(w, ((w & ~kHasWaiters) + kOne) | bit, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }
  list.wake_all();
}

}  // namespace fiberthread
