// SPDX-License-Identifier: MIT
// The loop of every wait that others end, or that a deadline or an interrupt may end before: in the parking lot, for futures, channels,
// descriptors, and for a fiber's end. A wait that only its one event ends is a loop around park_if().
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/embedder.h"
#include "sched/fiber.h"

namespace fiberthread {

// Ends: the fiber must end at once. The caller undoes what it still holds, calls wait_over() and embedder().end_now().
enum class WaitEnd { Over, TimedOut, Interrupted, Ends };

// Waits until over(), a deadline (on now_ns()'s clock, see kFollowsRealtime), or an interrupt in `interrupts`. `me` is the caller. Parks.
//
// The thread that makes over() true unparks `me` afterwards. While `flag` is not `expected`, the caller does not park. Where over() looks
// at no word of this size, kNoFlag is right, because the unpark is latched. withdraw() makes sure that no thread will make over() true any
// more. It returns false if a thread has done so, or is sure to. Then the wait goes on until over(), whatever comes. If others may find the
// caller's stack by this wait, the caller counts FiberRecord::wait.pins up before, and calls wait_over() afterwards.
inline constinit const std::atomic<uint32_t> kNoFlag{0};
template <class Over, class Withdraw>
WaitEnd wait_until(FiberRecord* me, const std::atomic<uint32_t>& flag, uint32_t expected, Over over, Withdraw withdraw,
                   const ParkReason& reason, uint64_t deadline, uint32_t interrupts) {
  bool late = passed(me, deadline);
  while (!over()) {
    // An interrupt that comes after this look sets the latch, and then park_if() returns.
    uint32_t pending = me->run.interrupts.load(std::memory_order_relaxed);
    if (interrupts || deadline != kNever || pending & kInterruptUnwind) {
      bool interrupted = pending & interrupts;
      bool ends = !interrupted && ends_in_wait(me, pending);
      if (interrupted || late || ends) {
        if (withdraw()) return interrupted ? WaitEnd::Interrupted : ends ? WaitEnd::Ends : WaitEnd::TimedOut;
        deadline = kNever;
        interrupts = 0;
        late = false;
      }
    }
    late = !park_if(&flag, expected, reason, deadline);
  }
  return WaitEnd::Over;
}

// Returns a deadline that does not follow the realtime clock, and is never earlier than asked for.
constexpr uint64_t plain_deadline(uint64_t deadline_ns) {
  return deadline_ns >= kNever - 1 ? kNever : (deadline_ns + 1) & ~kFollowsRealtime;
}
// Returns such a deadline `ns` nanoseconds from now, or kNever for kNever.
inline uint64_t deadline_in(uint64_t ns) {
  uint64_t deadline;
  return ns == kNever || __builtin_add_overflow(now_ns(), ns, &deadline) ? kNever : plain_deadline(deadline);
}

}  // namespace fiberthread
