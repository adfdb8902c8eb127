// SPDX-License-Identifier: MIT
// CPU clocks and timers of single threads, as the rest of the shim needs them.
#pragma once
#include <signal.h>
#include <time.h>

#include <atomic>

#include "sched/fiber.h"

namespace fiberthread {

// Whom a signal concerns that a timer has sent by SIGEV_THREAD_ID; null: any other signal, or a timer's for the process. While this exists,
// timer_delete() of that timer waits: afterwards its thread has got no signal of it that it could not see. Signal-safe.
class TimerTarget {
 public:
  explicit TimerTarget(const siginfo_t& info);
  ~TimerTarget();
  TimerTarget(const TimerTarget&) = delete;
  FiberRecord* fiber() const { return fiber_; }
  bool gone() const { return gone_; }  // the thread has ended, or the timer is deleted: the signal is nobody's

 private:
  std::atomic<uint32_t>* handing_over_ = nullptr;
  FiberRecord* fiber_ = nullptr;
  bool gone_ = false;
};

// The fiber whose CPU time this clock shows: the caller's for CLOCK_THREAD_CPUTIME_ID, or one by pthread_getcpuclockid()'s number.
// Null: the clock is the kernel's.
FiberRecord* owner_of_clock(clockid_t clock);
// That number. Made of the fiber's id as the kernel makes it of a tid.
clockid_t cpu_clock_of(const FiberRecord* f);

}  // namespace fiberthread
