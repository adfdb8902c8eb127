// SPDX-License-Identifier: MIT
// The program's timers (timer_create): which thread each one signals, and what the library keeps of its signals.
//
// The kernel keeps one signal for each timer. While that is pending, a periodic timer stands still: the kernel counts the expiries that it
// leaves out as overruns. timer_delete() and timer_settime() drop the signal (Linux 6.13 and later). The library takes signals out of the
// kernel before their threads want them, so it does the same with those that it keeps. Otherwise a timer that is faster than its thread
// would leave the thread no time at all.
#pragma once
#include <signal.h>
#include <time.h>

#include <atomic>

#include "sched/fiber.h"

namespace fiberthread {

namespace signals {
struct Pending;
}

struct PosixTimer {
  std::atomic<int> number{-1};   // the kernel's; -1: this place is free, -2: it is being filled in
  int tid = 0;                   // of the thread that it signals; 0: it signals the process
  FiberRecord* fiber = nullptr;  // that thread, if it is a fiber
  // The number of a deleted timer stays as long as possible. A kernel thread may have taken a signal of it just before, and may come here
  // late. Without the number that signal would count as the process's.
  std::atomic<bool> deleted{false};
  std::atomic<uint32_t> handing_over{0};  // how many threads have a signal of it in hand that is not recorded yet
  signals::Pending* pending = nullptr;    // its signal, if that is in one of our queues; under signals_lock
  // Under signals_lock. Which clock runs while the timer stands still; -1: it is let run.
  clockid_t pace = -1;
  clockid_t clock = 0;
  bool absolute = false;  // it was set so last
  // If `interval` is not 0, the timer stands still since `stopped`, `left` before an expiry. Then `pending` is not null. All in nanoseconds.
  std::atomic<uint64_t> interval{0};
  uint64_t left = 0, stopped = 0;
  // Calls of timer_settime(). Written under the lock of the timers.
  std::atomic<uint32_t> settings_begun{0}, settings_over{0};
  // No signal that comes before this time of `pace` is of the present setting. 0: that cannot be told. Relaxed: a thread that sets the timer
  // publishes nothing else by it.
  std::atomic<uint64_t> due{0};
  // How many expiries the signal stands for, besides its own, that the program has got last. -1: the kernel knows.
  std::atomic<int> overrun{-1};
};

// Returns the timer that has sent this signal, deleted or not. Null: no timer has. Signal-safe.
PosixTimer* timer_of(const siginfo_t& info);
// Returns true if the timer is deleted, or cannot have expired yet since it was set. A signal that comes now is then of an earlier setting.
bool timer_signal_is_old(const PosixTimer& t);
// Both are called under SignalsGuard, while the timer's signal is pending. The first stops a periodic timer that has expired again. The other
// lets it go on, and adds what it has left out to the signal's overruns.
void timer_stop(PosixTimer& t);
void timer_go_on(PosixTimer& t);
// Returns true if a timer will send a signal.
bool timers_set();
// Called when the program gets a signal.
inline void timer_signal_is_got(const siginfo_t& info) {
  if (info.si_code != SI_TIMER) return;
  if (PosixTimer* t = timer_of(info)) t->overrun.store(info.si_overrun, std::memory_order_relaxed);
}

// The thread that gets a signal which a timer has sent by SIGEV_THREAD_ID. fiber() is null for any other signal, and for that of a timer
// for the process. While this object exists, timer_delete() and timer_settime() of that timer wait. So from their return on no thread gets a
// signal that the timer has sent before. Signal-safe.
class TimerTarget {
 public:
  explicit TimerTarget(const siginfo_t& info);
  ~TimerTarget();
  TimerTarget(const TimerTarget&) = delete;
  FiberRecord* fiber() const { return fiber_; }
  // The thread has ended, or the timer is deleted or set anew: the signal is dropped.
  bool gone() const { return gone_; }

 private:
  PosixTimer* timer_ = nullptr;
  FiberRecord* fiber_ = nullptr;
  bool gone_ = false;
};

}  // namespace fiberthread
