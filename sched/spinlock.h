// A lock for a few instructions of scheduler work. Whoever holds one must not be preempted by the scheduler: the caller
// is in worker context or holds a Busy. The kernel may still take the CPU away, so a long wait gives ours up.
#pragma once
#include <atomic>

#include "sched/arch.h"
#include "sched/syscall.h"

namespace fiberthread {

class SpinLock {
 public:
  bool try_lock() {
    return !locked_.load(std::memory_order_relaxed) && !locked_.exchange(true, std::memory_order_acquire);
  }
  void lock() {
    while (!try_lock()) {
      for (int i = 0; locked_.load(std::memory_order_relaxed); i++) {
        if (i < 200) cpu_relax();
        else raw_syscall(SYS_sched_yield);
      }
    }
  }
  // Until whoever has it now has left it. Acquires what he wrote.
  void wait_until_free() {
    while (locked_.load(std::memory_order_acquire)) cpu_relax();
  }
  void unlock() { locked_.store(false, std::memory_order_release); }
  // For the child of a fork, where no other thread exists that could hold it.
  void reset() { locked_.store(false, std::memory_order_relaxed); }

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

}  // namespace fiberthread
