// SPDX-License-Identifier: MIT
// The search for a worker's next fiber.
#include <errno.h>

#include "sched/cord.h"
#include "sched/observe/names.h"
#include "sched/observe/probe.h"
#include "sched/poller.h"
#include "sched/run/parts.h"
#include "sched/memory/block.h"

namespace fiberthread {

namespace {

constexpr uint32_t kStealAgeUs = 5;  // how long `next` belongs to its slot alone

// Returns true if the slot's `next` has been there for kStealAgeUs, during which the slot's holder went on to no other fiber. The thief
// keeps the time. So a thread that sets `next` need not read a clock, which costs as much as two locked instructions.
bool is_old(Worker* w, Slot* s) {
  FiberRecord* next = s->next.load(std::memory_order_relaxed);
  if (!next) return false;
  Worker* holder = s->holder.load(std::memory_order_acquire);
  if (!holder) return true;
  uint32_t heartbeat = holder->run.heartbeat.load(std::memory_order_relaxed);
  uint64_t age = cycles() - w->look.candidate.since;
  if (w->look.candidate.slot == s && w->look.candidate.next == next && w->look.candidate.heartbeat == heartbeat)
    return age > kStealAgeUs * cycles_per_us;
  // One candidate at a time: another slot becomes it when the present one is of no use any more.
  if (w->look.candidate.slot && w->look.candidate.slot != s && age <= 2 * kStealAgeUs * cycles_per_us) return false;
  w->look.candidate.slot = s;
  w->look.candidate.next = next;
  w->look.candidate.heartbeat = heartbeat;
  w->look.candidate.since = cycles();
  return false;
}

FiberRecord* steal(Worker* w) {
  uint32_t n = slot_count.load(std::memory_order_acquire);
  uint32_t start = random_number(w);
  for (uint32_t i = 0; i < n; i++) {
    Slot* s = slots[(start + i) % n];
    FiberRecord* f;
    if ((f = s->inbox.pop())) return f;
    if (s == w->run.slot) continue;
    if ((f = s->local.steal_into(w->run.slot->local)) || (is_old(w, s) && (f = take_next(s)))) {
      if (wake_pays.load(std::memory_order_relaxed) != WakePays::Paid) wake_pays.store(WakePays::Paid, std::memory_order_relaxed);
      w->counts.steals++;
      FIBERTHREAD_PROBE2("steal", f, w);
      if (observed(kObserveTrace)) observe_stolen(f, s->index);
      return f;
    }
  }
  return nullptr;
}

}  // namespace

void stop_searching(Worker* w) {
  if (!w->look.searching) return;
  w->look.searching = false;
  if (searching.fetch_sub(1, std::memory_order_seq_cst) != 1) return;
  wake_for_queued();
}

// Returns the next fiber to run, after as much sleep as it takes. Null: the worker must end. In worker context.
FiberRecord* find(Worker* w) {
  leave_own_wait(w);  // a handler waits in the call, or has left it by a jump
  bool slept = false;
  auto found = [&](FiberRecord* f) {
    w->look.slept_for = slept ? f : nullptr;
    return f;
  };
  for (;;) {
    FiberRecord* f;
    if (w->run.slot && __builtin_expect(too_many_like(w->run.slot), 0)) give_up_slot(w);
    if (!w->run.slot && !take_free_slot(w)) {
      // If all workers with slots are asleep in the kernel, no worker runs a timer that is due, and sysmon may not know of it.
      run_timers(now_ns());
      if (next_timer() != kNever) sysmon_wake_for_timers();
      block_put_kept(w);  // there may be many spares
      go_idle(w);
      if (w->thread.leaves.load(std::memory_order_relaxed)) return nullptr;
      continue;
    }
    if ((f = pick(w))) return found(f);
    run_timers(now_ns());
    look_at_poller(w);
    if ((f = pick(w))) return found(f);
    if (__builtin_expect(exploring, 0)) {
      if (explored_idle()) continue;
      sysmon_begin();
      go_idle(w);
      explore_outside();
      if (w->thread.leaves.load(std::memory_order_relaxed)) return nullptr;
      continue;
    }
    if (!w->look.searching) {
      w->look.searching = true;
      searching.fetch_add(1, std::memory_order_seq_cst);
    }
    uint64_t start = cycles();
    bool made;
    do {
      if ((f = steal(w)) || (f = pick(w))) {
        w->look.spin_us = kSpinUs;
        return found(f);
      }
      if ((made = block_populate())) start = cycles();
      else
        for (int i = 0; i < 8; i++) cpu_relax();
    } while (made || (!is_reserve(w->run.slot) && cycles() - start < w->look.spin_us * cycles_per_us));
    if (look_at_poller(w) && (f = pick(w))) return found(f);
    go_idle(w);
    slept = true;
    if (w->thread.leaves.load(std::memory_order_relaxed)) return nullptr;
    // Would a full search have found the work? Where the next work is always further away, each search takes CPU time from others, such as
    // the program's peer on the same machine.
    w->look.spin_us = cycles() - start < 2 * kSpinUs * cycles_per_us ? kSpinUs : w->look.spin_us / 2;
  }
}

// Returns the next fiber for a bound worker, as find() does for others. Null: there is no fiber any more.
FiberRecord* await_handed(Worker* w) {
  if (next_timer() != kNever) sysmon_wake_for_timers();
  __atomic_store_n(&w->idle.listed, true, __ATOMIC_RELEASE);
  FiberRecord* f = nullptr;
  CordRecord* c = w->run.cord;
  auto others_ready = [&] { return c && !c->alone.load(std::memory_order_relaxed) && !c->ready.empty(); };
  uint64_t until = w->bond.wait_until.load(std::memory_order_relaxed);
  // Sysmon may have found no deadlock because this fiber had a deadline, and would not look again.
  if (until == kNever && w->bond.waited_until) sysmon_wake();
  w->bond.waited_until = until != kNever;
  while (w->bond.fiber && !w->thread.leaves.load(std::memory_order_acquire)) {
    if ((f = c ? pick_of_cord(w) : w->bond.handed.exchange(nullptr, std::memory_order_acq_rel))) {
      if (habit_ended(w, f)) f = nullptr;
      break;
    }
    if (c) {
      run_timers(now_ns());
      if (poll_active()) poll_look();
      if (poll_active() && !poll_watched()) sysmon_wake();
    }
    block_put_kept(w);  // there may be many such workers
    if (observed(kObserveNames)) name_worker(w, nullptr);
    w->idle.wake.exchange(0, std::memory_order_seq_cst);
    sleep_mask(w);
    if (!w->bond.handed.load(std::memory_order_seq_cst) && !others_ready() && !w->thread.leaves.load(std::memory_order_seq_cst))
      w->bond.slept_in_waits += futex_wait(&w->idle.wake, 0, until == kNever ? 0 : until) != -EAGAIN;
    awake_mask(w);
    if (until == kNever || now_ns() < until) continue;
    until = kNever;
    if (!w->bond.handed.load(std::memory_order_relaxed)) unpark(w->bond.fiber);
  }
  w->bond.wait_until.store(kNever, std::memory_order_relaxed);
  __atomic_store_n(&w->idle.listed, false, __ATOMIC_RELEASE);
  return f;
}

}  // namespace fiberthread
