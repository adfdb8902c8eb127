// SPDX-License-Identifier: MIT
// A fiber that sleeps in the kernel, and its slot.
#include "sched/observe/probe.h"
#include "sched/run/parts.h"

namespace fiberthread {

namespace {

constexpr uint32_t kHabit = 8;  // blocking calls that cost a slot before the fiber becomes bound

// The running fiber goes on without a slot. Inside an Entry.
void hand_own_slot(Worker* w) {
  Slot* s = w->slot;
  w->slot = nullptr;
  // Sysmon may have read the slot just before, and waits for us to leave: it must not think that nothing has happened.
  w->heartbeat.store(w->heartbeat.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  hand_slot_to_spare(s);
}

}  // namespace

void Entry::settle(Worker* w) {
  uint32_t asked = kAsked;
  if (w->revoked.compare_exchange_strong(asked, kKept, std::memory_order_acq_rel) || asked == kKept) return;
  w->slot = nullptr;  // taken: somebody else has it
  w->revoked.store(kKept, std::memory_order_release);
  if (watched(kWatchTrace)) watch_came_back(w);
  count_loss(w);
}

// Who blocks again and again keeps this kernel thread, and never again a slot that others wait for.
void Entry::count_loss(Worker* w) {
  FiberRecord* f = w->running.load(std::memory_order_relaxed);
  if (!f || f->bound.load(std::memory_order_relaxed) || ++f->blocked < kHabit || (w->initial && !f->is_main)) return;
  // Another may be binding it just now.
  Worker* none = nullptr;
  if (f->bound.compare_exchange_strong(none, w, std::memory_order_acq_rel)) w->bound = f;
}

void Blocking::begin(bool short_ones) {
  FiberRecord* me = self();
  if (me->kernel || me->bound.load(std::memory_order_relaxed) || tls_vforked) return;
  Busy busy;
  Worker* w = me->worker;
  Entry entry(w);
  if (!w->slot || !(work_queued() || chaos(2))) return;
  statistics.handovers.fetch_add(1, std::memory_order_relaxed);
  FIBERTHREAD_PROBE1("hand-over", w);
  if (watched(kWatchTrace)) w->taken_at.store(cycles(), std::memory_order_relaxed);
  if (watched(kWatchTrace | kWatchSysmon)) watch_handed_over(w);
  hand_own_slot(w);
  if (!short_ones) Entry::count_loss(w);
}

void Blocking::end() {
  FiberRecord* me = self();
  if (me->kernel || me->bound.load(std::memory_order_relaxed) || tls_vforked) return;
  Busy busy;
  Worker* w = me->worker;
  Entry entry(w);
  if (watched(kWatchTrace)) watch_came_back(w);
  // Without one it goes on all the same, until it next waits or is preempted: it may hold what others wait for. The entry may
  // just have bound it, for its habit.
  if (!w->slot && !me->bound.load(std::memory_order_relaxed)) take_free_slot(w);
}

void sched_bind_to_initial() {
  FiberRecord* me = self();
  if (me->kernel) return;
  Busy busy;
  Worker* w = me->worker;
  if (!w->initial) return;
  Entry entry(w);
  Worker* none = nullptr;
  if (!me->bound.compare_exchange_strong(none, w, std::memory_order_acq_rel)) return;
  w->bound = me;
  if (w->slot) hand_own_slot(w);
}

}  // namespace fiberthread
