// SPDX-License-Identifier: MIT
// A memory barrier in every thread, by membarrier(): who enters the scheduler often pays for none (sched/sysmon.cpp).
#include <time.h>

#include "sched/life/parts.h"
#include "sched/worker.h"

namespace fiberthread {

std::atomic<bool> no_membarrier{false};

namespace {

std::atomic<bool> all_have_barriers{false};

}  // namespace

void barrier_init() {
  bool refused = raw_syscall(SYS_membarrier, 1 << 4 /* REGISTER_PRIVATE_EXPEDITED */, 0, 0) != 0;
  no_membarrier.store(refused, std::memory_order_relaxed);
  all_have_barriers.store(refused, std::memory_order_relaxed);
}

void barrier_everywhere() {
  if (all_have_barriers.load(std::memory_order_acquire) || raw_syscall(SYS_membarrier, 1 << 3 /* PRIVATE_EXPEDITED */, 0, 0) == 0) return;
  // The program has a filter since. From now on all pay for their own; and what was stored by those who did not know it yet has come out
  // of their processors when some time has passed.
  no_membarrier.store(true, std::memory_order_seq_cst);
  constexpr timespec kWhile{0, 1'000'000};
  raw_syscall(SYS_nanosleep, arg(&kWhile), 0);
  all_have_barriers.store(true, std::memory_order_release);
}

}  // namespace fiberthread
