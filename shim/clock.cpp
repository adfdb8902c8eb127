// SPDX-License-Identifier: MIT
// Clocks of single threads: CPU time.
#include "shim/clock.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>

#include "sched/accounting.h"
#include "sched/explore/explore.h"
#include "sched/scheduler.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/signal.h"
#include "shim/thread_names.h"
#include "shim/time.h"
#include "shim/user_memory.h"

namespace fiberthread {
namespace {

// This is used everywhere, handlers and worker context included.
[[gnu::constructor]] void resolve_clock() { (void)REAL(clock_gettime); }

bool is_ours(FiberRecord* f) { return f && sched_started() && !f->run.kernel && !in_vfork_child(); }

}  // namespace

// A clock's number has room for 28 bits of an id.
constexpr uint32_t kClockIds = 1u << 28;

clockid_t cpu_clock_of(const FiberRecord* f) { return static_cast<clockid_t>(~(f->identity.id % kClockIds) << 3 | 6); }

FiberRecord* owner_of_clock(clockid_t clock) {
  constexpr int kThreads = 6;  // the low three bits: CPU time of one thread, as the scheduler counts it
  constexpr uint32_t kFirstOfOurs = 1u << 22, kMostIds = 1u << 30;
  FiberRecord* me = tls_current;
  if (!sched_started() || in_vfork_child() || !me) return nullptr;
  if (clock == CLOCK_THREAD_CPUTIME_ID) return is_ours(me) ? me : nullptr;
  if (clock >= 0 || (clock & 7) != kThreads) return nullptr;
  auto id = ~(static_cast<uint32_t>(clock) >> 3) % kClockIds;
  for (;; id += kClockIds) {
    FiberRecord* f = id >= kMostIds ? nullptr : fiber_of_tid(static_cast<int>(id));
    if (is_ours(f) && !f->join.done.load(std::memory_order_acquire)) return f;
    if (id < kFirstOfOurs || id >= kMostIds) return nullptr;
  }
}

}  // namespace fiberthread

using namespace fiberthread;

// Weak, since a unit test has a clock of its own.
FIBERTHREAD_EXPORT __attribute__((weak)) int clock_gettime(clockid_t clock, timespec* t) noexcept {
  const clockid_t asked = clock;
  if (__builtin_expect(exploring, 0) && explore_clock(clock, t)) return 0;
  if (__builtin_expect(clock >= 0 && clock != CLOCK_THREAD_CPUTIME_ID, 1)) return REAL(clock_gettime)(clock, t);
  constexpr int kThreads = 4, kUsers = 5, kScheduled = 6;  // both together, and user time, in the kernel's ticks
  if (clock < 0 && ((clock & 7) == kThreads || (clock & 7) == kUsers)) clock = (clock & ~7) | kScheduled;
  FiberRecord* f = owner_of_clock(clock);
  if (!f) return REAL(clock_gettime)(asked, t);
  uint64_t ns = cpu_time_of(f);
  timespec time{static_cast<time_t>(ns / kNsPerSec), static_cast<long>(ns % kNsPerSec)};
  if (copy_user(t, &time)) return 0;  // the kernel would write it
  errno = EFAULT;
  return -1;
}

FIBERTHREAD_EXPORT int clock_getres(clockid_t clock, timespec* t) noexcept {
  if (clock < 0 && owner_of_clock(clock)) clock = CLOCK_THREAD_CPUTIME_ID;
  return REAL(clock_getres)(clock, t);
}

// The kernel refuses that for the clock of any thread, but it knows its own threads only.
FIBERTHREAD_EXPORT int clock_settime(clockid_t clock, const timespec* t) noexcept {
  return REAL(clock_settime)(clock < 0 && owner_of_clock(clock) ? kClockOfCaller : clock, t);
}

// The CPU time is all told as the user's: only the kernel knows which part is its own.
FIBERTHREAD_EXPORT int getrusage(__rusage_who_t who, struct rusage* usage) noexcept {
  FiberRecord* f = who == RUSAGE_THREAD ? owner_of_clock(CLOCK_THREAD_CPUTIME_ID) : nullptr;
  int r = REAL(getrusage)(who, usage);
  if (r != 0 || !f) return r;
  long size = usage->ru_maxrss;  // the process's
  uint64_t us = cpu_time_of(f) / 1000;
  Usage counts = usage_of_caller();
  memset(usage, 0, sizeof *usage);
  usage->ru_maxrss = size;
  usage->ru_minflt = static_cast<long>(counts.minor_faults);
  usage->ru_majflt = static_cast<long>(counts.major_faults);
  usage->ru_inblock = static_cast<long>(counts.blocks_in);
  usage->ru_oublock = static_cast<long>(counts.blocks_out);
  usage->ru_nvcsw = static_cast<long>(counts.voluntary);
  usage->ru_nivcsw = static_cast<long>(counts.involuntary);
  usage->ru_utime = {static_cast<time_t>(us / 1'000'000), static_cast<suseconds_t>(us % 1'000'000)};
  return 0;
}
