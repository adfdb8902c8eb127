// SPDX-License-Identifier: MIT
// The fibers of the explored process, each with its clock. One fiber runs at a time, so there are no locks. A signal handler may come in
// between; then its accesses are not looked at.
#pragma once
#include "preload/explore/memory/cells.h"

namespace fiberthread {

constexpr uint32_t kMostThreads = 256;  // at a time. Of more, nothing is known

enum class State : uint8_t { Free, Born, Live };
struct Thread {
  State state = State::Free;
  uint8_t id = 0;
  uintptr_t handle = 0;
  uint32_t number = 0;
  uint64_t stack_high = 0;
  Clock clock, by_reads, at_fence;  // by_reads: what an acquire fence would acquire. at_fence: the clock at the last release fence
  uint32_t quiet = 0, signals_seen = 0;
  int ignored = 0;
  uintptr_t waits_with = 0;
};

extern Thread threads[kMostThreads];

extern bool busy;
// Held where what is known changes.
class Guard {
 public:
  Guard() : mine_(!__atomic_exchange_n(&busy, true, __ATOMIC_ACQUIRE)) {}
  ~Guard() {
    if (mine_) __atomic_store_n(&busy, false, __ATOMIC_RELEASE);
  }
  explicit operator bool() const { return mine_; }

 private:
  bool mine_;
};

// Returns the caller's thread, or null if nobody was seen to make it. With the guard.
Thread* this_thread();
// Notes what the fiber sees of others without a call of its own. With the guard.
void catch_up(Thread* t);

}  // namespace fiberthread
