// SPDX-License-Identifier: MIT
// The slot of a fiber that sleeps in the kernel: it goes to a spare worker.
#include "sched/observe/probe.h"
#include "sched/run/parts.h"

namespace fiberthread {

void hand_own_slot(Worker* w) {
  Slot* s = w->run.slot;
  w->run.slot = nullptr;
  // Sysmon may have read the slot just before this, and may read in_sched after we have left. The new heartbeat then keeps it from taking
  // the slot.
  w->run.heartbeat.store(w->run.heartbeat.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  hand_slot_to_spare(s);
}

void Entry::settle(Worker* w) {
  uint32_t asked = kAsked;
  if (w->run.revoked.compare_exchange_strong(asked, kKept, std::memory_order_acq_rel) || asked == kKept) return;
  w->run.slot = nullptr;  // taken: another worker has it, or it is free
  bool unwanted = w->run.taken_unwanted.load(std::memory_order_relaxed);
  w->run.revoked.store(kKept, std::memory_order_release);
  if (observed(kObserveTrace)) observe_came_back(w);
  if (!unwanted) count_loss(w);
  else if (!w->bond.fiber) take_free_slot(w);
}

void Blocking::begin(Sleep sleep) {
  FiberRecord* me = self();
  if (me->run.kernel || me->run.bound.load(std::memory_order_relaxed) || tls_vforked) return;
  Busy busy;
  Worker* w = me->run.worker;
  Entry entry(w);
  if (!w->run.slot || !(work_queued() || chaos(2))) return;
  statistics.handovers.fetch_add(1, std::memory_order_relaxed);
  FIBERTHREAD_PROBE1("hand-over", w);
  if (observed(kObserveTrace)) w->observed.taken_at.store(cycles(), std::memory_order_relaxed);
  if (observed(kObserveTrace | kObserveSysmon)) observe_handed_over(w);
  hand_own_slot(w);
  if (sleep == Sleep::Long) count_loss(w);
}

void Blocking::end() {
  FiberRecord* me = self();
  if (me->run.kernel || me->run.bound.load(std::memory_order_relaxed) || tls_vforked) return;
  Busy busy;
  Worker* w = me->run.worker;
  Entry entry(w);
  if (observed(kObserveTrace)) observe_came_back(w);
  // Without a slot the fiber goes on all the same, until it next waits or is preempted, because it may hold what others wait for. The entry
  // may just have bound it for its habit.
  if (!w->run.slot && !me->run.bound.load(std::memory_order_relaxed)) take_free_slot(w);
}

}  // namespace fiberthread
