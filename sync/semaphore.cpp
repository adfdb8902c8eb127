// SPDX-License-Identifier: MIT
#include "fiberthread/semaphore.h"

#include "sync/checks.h"
#include "sync/park_error.h"

namespace fiberthread {
namespace {

constexpr uint64_t kDestroyedSemaphore = kDestroyedWord | 1;  // permits while a thread waits, which no living semaphore has

}  // namespace

Semaphore::~Semaphore() {
  if (!kDebugChecks) return;
  check(word_.load(std::memory_order_relaxed) != kDestroyedSemaphore, "Semaphore", this, "is destroyed twice");
  check_unused(0, "Semaphore", this);
  word_.store(kDestroyedSemaphore, std::memory_order_relaxed);
}

int Semaphore::acquire_slow(uint64_t deadline_ns) {
  check(word_.load(std::memory_order_relaxed) != kDestroyedSemaphore, "Semaphore", this, "is waited for after it was destroyed");
  Waiter w;
  auto must_wait = [&] {
    uint64_t now = word_.load(std::memory_order_relaxed);
    for (;;) {
      if (now >= kOne) {
        if (word_.compare_exchange_weak(now, now - kOne, std::memory_order_acquire, std::memory_order_relaxed)) return false;
      } else if (now & kWaiting || word_.compare_exchange_weak(now, kWaiting, std::memory_order_relaxed)) {
        return true;
      }
    }
  };
  return park_error(this, w, must_wait, {"Semaphore", this}, deadline_ns);
}

void Semaphore::release_slow(uint64_t n) {
  check(word_.load(std::memory_order_relaxed) != kDestroyedSemaphore, "Semaphore", this, "is released after it was destroyed");
  WakeList list;
  {
    LockedQueue q(this);
    while (n > 0 && q.first()) {
      list.add(q, *q.first());
      n--;
    }
    uint64_t waiting = q.first() ? kWaiting : 0, w = word_.load(std::memory_order_relaxed);
    // No other thread changes the bit meanwhile. If it is clear by now, permits come and go.
    while (!word_.compare_exchange_weak(w, ((w & ~kWaiting) + n * kOne) | waiting, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }
  list.wake_all();
}

}  // namespace fiberthread
