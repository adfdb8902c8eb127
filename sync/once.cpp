// SPDX-License-Identifier: MIT
#include "fiberthread/once.h"

#include "sync/checks.h"
#include "sync/park_error.h"

namespace fiberthread {

Once::~Once() {
  if (!kDebugChecks) return;
  check_unused(word_.load(std::memory_order_relaxed), "Once", this);
  word_.store(kDestroyedWord, std::memory_order_relaxed);
}

bool Once::begin() {
  for (;;) {
    uint64_t w = word_.load(std::memory_order_acquire);
    check(w != kDestroyedWord, "Once", this, "is used after it was destroyed");
    if (w == kDone) return false;
    if (w == kIdle) {
      if (word_.compare_exchange_weak(w, kRuns, std::memory_order_acquire)) return true;
      continue;
    }
    Waiter waiter;
    auto runs = [this] {
      uint64_t now = word_.load(std::memory_order_relaxed);
      while (now == kRuns && !word_.compare_exchange_weak(now, kAwaited, std::memory_order_relaxed)) {
      }
      return now == kRuns || now == kAwaited;
    };
    park_error(this, waiter, runs, {"Once", this}, kNever, 0);
  }
}

void Once::end(bool done) {
  uint64_t to = done ? kDone : kIdle, w = kRuns;
  // Release: waiters see what the function did. The store is the last touch, here and below.
  if (word_.compare_exchange_strong(w, to, std::memory_order_release)) return;
  WakeList list;
  {
    LockedQueue q(this);
    while (Waiter* first = q.first()) list.add(q, *first);
    word_.store(to, std::memory_order_release);
  }
  list.wake_all();
}

}  // namespace fiberthread
