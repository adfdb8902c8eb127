// SPDX-License-Identifier: MIT
// Timers: a hierarchical wheel for each slot. Insert and cancel are O(1). By the wheel itself a timer fires at most one tick (65.5 µs)
// late, and never early.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/spinlock.h"

namespace fiberthread {

struct FiberRecord;
class TimerWheel;

// A timer, on the stack of the fiber that waits. When it is due, the wheel unparks the fiber.
struct Timer {
  FiberRecord* fiber;
  uint64_t deadline;  // now_ns() clock
  Timer* next = nullptr;
  Timer** link = nullptr;  // the pointer that points to this one; null when it is in no wheel
  TimerWheel* wheel = nullptr;
};

class TimerWheel {
 public:
  // All of these are called under Busy, or in worker context.
  void add(Timer& t);
  void cancel(Timer& t);   // after it, no thread touches t
  void run(uint64_t now);  // unparks the fibers whose timers are due
  // Returns a time not later than the first deadline; kNever if there is none. May be early by the coarseness of the wheel.
  uint64_t next() const { return next_.load(std::memory_order_acquire); }
  void reset();

 private:
  static constexpr int kTickShift = 16, kLevelBits = 6, kLevels = 8, kWidth = 1 << kLevelBits;
  void insert(Timer& t);
  void recompute();

  SpinLock lock_;  // taken before the queue locks that unpark() takes
  std::atomic<uint64_t> next_{~uint64_t{0}};
  uint64_t tick_ = 0;  // all earlier ticks were run
  uint64_t occupied_[kLevels] = {};
  Timer* buckets_[kLevels][kWidth] = {};
};

}  // namespace fiberthread
