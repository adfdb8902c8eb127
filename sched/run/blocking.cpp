// SPDX-License-Identifier: MIT
// The slot of a fiber that sleeps in the kernel: it goes to a spare worker, or is free while an event loop waits in its own call.
#include "sched/chaos.h"
#include "sched/cord.h"
#include "sched/explore/explore.h"
#include "sched/life/fork.h"
#include "sched/observe/probe.h"
#include "sched/run/parts.h"

namespace fiberthread {

namespace {

// Returns the worker's slot, which it does not have any more. Sysmon may have read the slot just before this, and may read in_sched after we
// have left. The new heartbeat then keeps it from taking the slot.
Slot* leave_slot(Worker* w) {
  Slot* s = w->run.slot;
  w->run.slot = nullptr;
  w->run.heartbeat.store(w->run.heartbeat.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return s;
}

// The time that the fiber sleeps in the kernel is no part of its run.
void run_pauses(Worker* w) {
  if (observed(kObserveRuns)) w->look.slept_at = cycles();
}
void run_goes_on(Worker* w) {
  if (!observed(kObserveRuns)) return;
  uint64_t now = cycles(), began = w->look.run_began + (now - w->look.slept_at);
  w->look.run_began = began < now ? began : now;  // slept_at is old if kObserveRuns was not set at the begin
}

}  // namespace

void hand_own_slot(Worker* w) { hand_slot_to_spare(leave_slot(w)); }

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
  run_pauses(w);
  if (!w->run.slot || !((is_reserve(w->run.slot) ? who_waits() == Waiting::Others : work_queued()) || chaos(2))) return;
  // When the call returns is not ours to say. As long as no other fiber runs, it makes no difference.
  if (exploring) return;
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
  run_goes_on(w);
}

// ---- waits of event loops ----

namespace {

constexpr uint8_t kSleeps = 4;         // so many waits in a row had to sleep in the kernel, before they do so in their own call
constexpr uint8_t kTryParking = 64;    // one in so many waits parks all the same, to see whether it still has to
constexpr uint32_t kMostOwnWaits = 4;  // times the slots: each is a kernel thread

std::atomic<uint32_t> own_waits{0};

}  // namespace

void leave_own_wait(Worker* w) {
  if (!w->look.own_wait) return;
  w->look.own_wait = false;
  own_waits.fetch_sub(1, std::memory_order_relaxed);
}

bool own_wait_is_to_end(Worker* w) {
  FiberRecord* f = w->run.running.load(std::memory_order_relaxed);
  return f && f->run.in_own_call.load(std::memory_order_relaxed) && f->run.interrupts.load(std::memory_order_relaxed) & kInterruptEnd;
}

void wake_own_wait(FiberRecord* f) {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with OwnWait::begin(): we see that f waits there, or it sees its bits
  if (f != tls_current && f->run.in_own_call.load(std::memory_order_relaxed)) sysmon_call();
}

void OwnWait::parked() {
  FiberRecord* me = tls_current;
  Worker* w = me->run.worker;
  bool slept = w->look.slept_for == me;
  w->look.slept_for = nullptr;
  if (!slept) me->turns.slept = 0;
  else if (me->turns.slept < kSleeps) me->turns.slept++;
}

bool OwnWait::begin() {
  FiberRecord* me = tls_current;
  me->run.in_own_call.store(false, std::memory_order_relaxed);
  if (!chaos(4) && (me->turns.slept < kSleeps || ++me->turns.own_waits % kTryParking == 0)) return false;
  if (me->run.bound.load(std::memory_order_relaxed) || cord_of(me)) return false;
  Busy busy;
  Worker* w = me->run.worker;
  Entry entry(w);
  leave_own_wait(w);  // a handler has left the call before
  if (w->bond.fiber || work_queued() || own_waits.load(std::memory_order_relaxed) >= kMostOwnWaits * base_slots()) return false;
  bool for_sysmon;
  {
    SpinGuard guard(idle_lock);
    for_sysmon = !poll_needs_no_sysmon(w);
    if (w->run.slot) add_free_slot(leave_slot(w));
  }
  if (observed(kObserveTrace)) observe_handed_over(w);
  w->look.own_wait = true;
  me->run.in_own_call.store(true, std::memory_order_relaxed);
  own_waits.fetch_add(1, std::memory_order_relaxed);  // relaxed: two at once may exceed the limit
  // As in go_idle(): either a thread that queues a fiber finds the free slot, or we find the fiber. Also pairs with wake_own_wait().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  chaos_delay();
  if (me->run.interrupts.load(std::memory_order_relaxed) & kInterruptEnd) {
    me->run.in_own_call.store(false, std::memory_order_relaxed);
    leave_own_wait(w);
    if (!w->run.slot) take_free_slot(w);
    return false;
  }
  wake_for_queued();
  if (for_sysmon) sysmon_watch_poller();
  sysmon_wake_for_timers();
  return true;
}

void OwnWait::end() {
  FiberRecord* me = tls_current;
  me->run.in_own_call.store(false, std::memory_order_relaxed);
  Busy busy;
  Worker* w = me->run.worker;
  Entry entry(w);
  leave_own_wait(w);
  if (observed(kObserveTrace)) observe_came_back(w);
  recent_ns.store(now_ns(), std::memory_order_relaxed);
  // A new turn, which sysmon measures from now on.
  if (observed(kObserveRuns)) w->look.run_began = cycles();
  w->run.heartbeat.store(w->run.heartbeat.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  // Without a slot the fiber goes on all the same, as after other waits in the kernel.
  if (!w->run.slot && !w->bond.fiber) take_free_slot(w);
}

FIBERTHREAD_IN_FORK_CHILD(Slots, own_waits, [](FiberRecord* me) {
  own_waits.store(0);
  if (me->run.worker) me->run.worker->look.own_wait = false;
})

}  // namespace fiberthread
