// SPDX-License-Identifier: MIT
// The number of fibers that were made, and of those that live.
//
// Each worker counts for itself, because workers would contend for a common counter at each birth and each end.
#include "sched/life/fork.h"
#include "sched/life/parts.h"
#include "sched/worker.h"

namespace fiberthread {

Statistics statistics;

namespace {

std::atomic<bool> main_ended{false}, last_ended{false};

}  // namespace

uint64_t fibers_spawned() {
  uint64_t n = statistics.spawned.load(std::memory_order_relaxed);
  for (Worker* w = all_workers(); w; w = w->thread.all_next) n += w->counts.spawned.load(std::memory_order_relaxed);
  return n;
}

uint64_t fibers_recycled() {
  uint64_t made = statistics.fresh.load(std::memory_order_relaxed), spawned = fibers_spawned();
  return spawned > made ? spawned - made : 0;
}

uint64_t live_fibers() {
  // Ends first: each fiber was counted as made before it was counted as ended. So the result is never less than the number that lived
  // meanwhile.
  uint64_t ended = statistics.ended.load(std::memory_order_acquire);
  for (Worker* w = all_workers(); w; w = w->thread.all_next) ended += w->counts.ended.load(std::memory_order_acquire);
  return 1 + fibers_spawned() - ended;
}

bool sched_count_end() {
  Busy busy;
  FiberRecord* me = self();
  if (me->run.kernel) statistics.ended.fetch_add(1, std::memory_order_release);
  else count(me->run.worker->counts.ended);
  // As long as main lives, no other fiber is the last. A fiber that ends needs no fence to know this: by main's membarrier, either the
  // fiber sees the flag, or main sees the end that was counted.
  if (me->identity.is_main) {
    main_ended.store(true, std::memory_order_seq_cst);
    barrier_everywhere();
  } else {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (__builtin_expect(no_membarrier.load(std::memory_order_relaxed), 0)) std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!main_ended.load(std::memory_order_relaxed)) return false;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // if two fibers end at once, one of them sees both ends
  return live_fibers() == 0 && !last_ended.exchange(true, std::memory_order_relaxed);
}

FIBERTHREAD_IN_FORK_CHILD(Counts, counts, [](FiberRecord*) {
  statistics.spawned.store(0);
  statistics.ended.store(0);
  statistics.handovers.store(0);
  statistics.peak.store(0);
  statistics.fresh.store(0);
  statistics.polls.store(0);
  main_ended.store(false);
  last_ended.store(false);
})

uint64_t workers_made() {
  uint64_t n = 0;
  for (Worker* w = all_workers(); w; w = w->thread.all_next) n += w->thread.tid != 0;  // 0: the kernel has refused its thread
  return n;
}

}  // namespace fiberthread
