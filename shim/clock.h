// SPDX-License-Identifier: MIT
// CPU clocks and timers of single threads, as the rest of the shim needs them.
#pragma once
#include <signal.h>
#include <time.h>

#include <atomic>

#include "sched/fiber.h"

namespace fiberthread {

// The thread that gets a signal which a timer has sent by SIGEV_THREAD_ID. fiber() is null for any other signal, and for that of a timer
// for the process. While this object exists, timer_delete() of that timer waits. So after timer_delete() its thread gets no more signals of
// the timer. Signal-safe.
class TimerTarget {
 public:
  explicit TimerTarget(const siginfo_t& info);
  ~TimerTarget();
  TimerTarget(const TimerTarget&) = delete;
  FiberRecord* fiber() const { return fiber_; }
  bool gone() const { return gone_; }  // the thread has ended, or the timer is deleted: the signal is dropped

 private:
  std::atomic<uint32_t>* handing_over_ = nullptr;
  FiberRecord* fiber_ = nullptr;
  bool gone_ = false;
};

// Returns the fiber whose CPU time this clock shows. That is the caller for CLOCK_THREAD_CPUTIME_ID, or the fiber of a number from
// pthread_getcpuclockid(). Null: the clock is the kernel's.
FiberRecord* owner_of_clock(clockid_t clock);
// Returns that number. It is made of the fiber's id as the kernel makes it of a tid.
clockid_t cpu_clock_of(const FiberRecord* f);
// The CPU clock of the kernel thread that asks.
constexpr clockid_t kClockOfCaller = -2;

}  // namespace fiberthread
