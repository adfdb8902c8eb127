// SPDX-License-Identifier: MIT
// A memory barrier in every thread, by membarrier(). So a worker that enters the scheduler often needs none (sched/sysmon.cpp).
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
  // The program has installed a filter meanwhile. From now on each thread executes barriers of its own. A thread that did not know this yet
  // may have stores in its processor, which other processors see after some time.
  no_membarrier.store(true, std::memory_order_seq_cst);
  constexpr timespec kWhile{0, 1'000'000};
  raw_syscall(SYS_nanosleep, arg(&kWhile), 0);
  all_have_barriers.store(true, std::memory_order_release);
}

}  // namespace fiberthread
