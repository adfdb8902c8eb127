// SPDX-License-Identifier: MIT
// How many fibers were made, and how many live.
//
// Each worker counts for itself, since one counter for all would be fought over at each birth and each end.
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
  // Ends first: each of them was counted as made before, so what comes out is never less than there were in between.
  uint64_t ended = statistics.ended.load(std::memory_order_acquire);
  for (Worker* w = all_workers(); w; w = w->thread.all_next) ended += w->counts.ended.load(std::memory_order_acquire);
  return 1 + fibers_spawned() - ended;
}

bool sched_count_end() {
  Busy busy;
  FiberRecord* me = self();
  if (me->run.kernel) statistics.ended.fetch_add(1, std::memory_order_release);
  else count(me->run.worker->counts.ended);
  // As long as main lives, nobody is the last. Whoever ends pays for no fence to know it: main's membarrier makes it see the flag,
  // or main the end that was counted.
  if (me->identity.is_main) {
    main_ended.store(true, std::memory_order_seq_cst);
    barrier_everywhere();
  } else {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (__builtin_expect(no_membarrier.load(std::memory_order_relaxed), 0)) std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!main_ended.load(std::memory_order_relaxed)) return false;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // of two that end at once, one sees both
  return live_fibers() == 0 && !last_ended.exchange(true, std::memory_order_relaxed);
}

FIBERTHREAD_IN_FORK_CHILD(Counts, [](FiberRecord*) {
  statistics.spawned.store(0);
  statistics.ended.store(0);
  statistics.handovers.store(0);
  statistics.peak.store(0);
  statistics.fresh.store(0);
  statistics.polls.store(0);
  main_ended.store(false);
  last_ended.store(false);
})

}  // namespace fiberthread
