// SPDX-License-Identifier: MIT
// A lock for a few instructions of scheduler work. The scheduler must not preempt a thread that holds one, so the caller is in worker
// context or under Busy. The kernel may still take the CPU away from the holder, so a thread that waits for long gives up its own.
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
  // Waits until the present holder has released the lock. Acquires what the holder wrote.
  void wait_until_free() {
    for (int i = 0; locked_.load(std::memory_order_acquire); i++) pause(i);
  }
  void unlock() { locked_.store(false, std::memory_order_release); }
  // Frees the lock in the child of a fork, where no other thread exists that could hold it. Does not write to the page if the lock is free.
  void reset() {
    if (locked_.load(std::memory_order_relaxed)) locked_.store(false, std::memory_order_relaxed);
  }

  // Backs off after the i-th failed attempt. The holder may lack the CPU. If a real-time thread waits on that CPU, only its sleep lets the
  // holder run.
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

// Holds two locks of a kind, taken in the order of their addresses.
class SpinPairGuard {
 public:
  SpinPairGuard(SpinLock& a, SpinLock& b) : first_(&a < &b ? a : b), second_(&a < &b ? b : a) {}
  SpinPairGuard(const SpinPairGuard&) = delete;

 private:
  SpinGuard first_, second_;
};

}  // namespace fiberthread
