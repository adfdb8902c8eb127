// SPDX-License-Identifier: MIT
#include "shim/unwinder.h"

#include <execinfo.h>

#include <atomic>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/syscall.h"
#include "shim/real.h"

namespace fiberthread {

namespace {

std::atomic<bool> loaded{false};
// Threads that load the unwinder, and threads that fork. Each thread adds itself and then looks at the other number, so at least one of two
// sees the other: sequentially consistent. The one that forks waits, and the one that loads steps back.
std::atomic<uint32_t> loading{0}, forking{0};
constinit thread_local bool loads_here = false;

void nap() {
  give_way();  // the other thread may wait for this worker
  constexpr long kNap[2] = {0, 50'000};
  raw_syscall(SYS_nanosleep, arg(kNap), 0);
}

}  // namespace

void unwinder_load() {
  if (loaded.load(std::memory_order_acquire) || loads_here) return;
  for (;;) {
    loading.fetch_add(1, std::memory_order_seq_cst);
    if (forking.load(std::memory_order_seq_cst) == 0) break;
    loading.fetch_sub(1, std::memory_order_relaxed);
    nap();
  }
  loads_here = true;  // a handler that runs meanwhile may fork or end this thread, and must not wait for it
  void* frame;
  REAL(backtrace)(&frame, 1);
  loads_here = false;
  loaded.store(true, std::memory_order_release);
  loading.fetch_sub(1, std::memory_order_release);
}

void unwinder_before_fork() {
  forking.fetch_add(1, std::memory_order_seq_cst);
  if (loaded.load(std::memory_order_acquire)) return;
  // The loading thread may want a lock that the program has taken for the fork, as some allocators do for all of theirs. So the wait is
  // limited. A fork after that is as on NPTL.
  constexpr uint64_t kMost = 2'000'000'000;  // ns
  uint64_t begun = now_ns();
  while (loading.load(std::memory_order_seq_cst) > (loads_here ? 1u : 0u) && now_ns() - begun < kMost) nap();
}

void unwinder_after_fork_in_parent() { forking.fetch_sub(1, std::memory_order_release); }

void unwinder_after_fork_in_child() {
  loading.store(0, std::memory_order_relaxed);
  forking.store(0, std::memory_order_relaxed);
}

}  // namespace fiberthread
