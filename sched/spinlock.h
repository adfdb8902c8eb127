// SPDX-License-Identifier: MIT
// A lock for a few instructions of scheduler work. Whoever holds one must not be preempted by the scheduler: the caller
// is in worker context or holds a Busy. The kernel may still take the CPU away, so a long wait gives ours up.
#pragma once
#include <atomic>

#include "sched/arch/arch.h"
#include "sched/syscall.h"

namespace fiberthread {

class SpinLock {
 public:
  bool try_lock() { return !locked_.load(std::memory_order_relaxed) && !locked_.exchange(true, std::memory_order_acquire); }
  void lock() {
    while (!try_lock()) {
      for (int i = 0; locked_.load(std::memory_order_relaxed); i++) {
        pause(i);
      }
    }
  }
  // Until whoever has it now has left it. Acquires what he wrote.
  void wait_until_free() {
    for (int i = 0; locked_.load(std::memory_order_acquire); i++) pause(i);
  }
  void unlock() { locked_.store(false, std::memory_order_release); }
  // For the child of a fork, where no other thread exists that could hold it. Writes to no page in vain.
  void reset() {
    if (locked_.load(std::memory_order_relaxed)) locked_.store(false, std::memory_order_relaxed);
  }

  // The i-th look in vain at what another does in a few instructions.
  // Who has it may lack the CPU, and a real-time thread that waits for it on that CPU gives it up only by sleeping.
  static void pause(int i) {
    constexpr long kNap[2] = {0, 50'000};
    if (i < 200) cpu_relax();
    else if (i < 220) raw_syscall(SYS_sched_yield);
    else raw_syscall(SYS_nanosleep, arg(kNap), 0);
  }

 private:
  std::atomic<bool> locked_{false};
};

class SpinGuard {
 public:
  explicit SpinGuard(SpinLock& l) : l_(l) { l_.lock(); }
  ~SpinGuard() { l_.unlock(); }
  SpinGuard(const SpinGuard&) = delete;

 private:
  SpinLock& l_;
};

// Two of a kind, in the order of their addresses.
class SpinPairGuard {
 public:
  SpinPairGuard(SpinLock& a, SpinLock& b) : first_(&a < &b ? a : b), second_(&a < &b ? b : a) {}
  SpinPairGuard(const SpinPairGuard&) = delete;

 private:
  SpinGuard first_, second_;
};

}  // namespace fiberthread
