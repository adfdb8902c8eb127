// SPDX-License-Identifier: MIT
#include "shim/time.h"

#include "sched/scheduler.h"

namespace fiberthread {
namespace {
constexpr int64_t kFarSeconds = 4'000'000'000;  // 126 years, well inside 64 bits of nanoseconds
}

uint64_t deadline_in(const timespec& t) {
  return t.tv_sec > kFarSeconds ? kNever : deadline_in(static_cast<uint64_t>(t.tv_sec * kNsPerSec + t.tv_nsec));
}

uint64_t deadline_from(clockid_t clock, const timespec* t) {
  if (!t) return kNever;
  if (clock == CLOCK_MONOTONIC) {
    if (t->tv_sec < 0) return 0;
    if (t->tv_sec > kFarSeconds) return kNever;
    return plain_deadline(static_cast<uint64_t>(t->tv_sec * kNsPerSec + t->tv_nsec));
  }
  FiberRecord* me = self();
  bool follows = clock == CLOCK_REALTIME;
  if (follows) {
    sysmon_follow_clock();
    uint32_t settings = clock_settings.load(std::memory_order_acquire);
    // Stored before the clock is read. A thread that sets the clock afterwards wakes us.
    if (me->wait.clock_seen != settings) __atomic_exchange_n(&me->wait.clock_seen, settings, __ATOMIC_SEQ_CST);
  }
  timespec now;
  clock_gettime(clock, &now);  // before now_ns(), so that the error makes us late, not early
  int64_t seconds;
  if (__builtin_sub_overflow(t->tv_sec, now.tv_sec, &seconds)) return t->tv_sec < 0 ? 0 : kNever;
  if (seconds > kFarSeconds) return kNever;
  int64_t left = seconds < -1 ? -1 : seconds * kNsPerSec + (t->tv_nsec - now.tv_nsec);
  if (left <= 0) return 0;
  uint64_t deadline = now_ns() + static_cast<uint64_t>(left);
  return follows ? deadline | kFollowsRealtime : plain_deadline(deadline);
}

timespec time_until(uint64_t deadline) {
  uint64_t now = now_ns(), left = deadline > now ? deadline - now : 0;
  return {static_cast<time_t>(left / kNsPerSec), static_cast<long>(left % kNsPerSec)};
}

bool reached(clockid_t clock, const timespec* t) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec > t->tv_sec || (now.tv_sec == t->tv_sec && now.tv_nsec >= t->tv_nsec);
}

}  // namespace fiberthread
