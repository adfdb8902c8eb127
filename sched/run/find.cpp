// SPDX-License-Identifier: MIT
// What a worker runs next: a quick look at the queues, and the search.
#include "sched/cord.h"
#include "sched/observe/probe.h"
#include "sched/poller.h"
#include "sched/run/parts.h"
#include "sched/memory/block.h"

namespace fiberthread {

namespace {

constexpr uint32_t kStealAgeUs = 5;  // how long `next` belongs to its slot alone

// True if the slot's `next` has been there for kStealAgeUs, during which its holder went on to no other fiber. The thief keeps the
// time, so that who sets `next` need not look at a clock, which costs as much as two locked instructions.
bool is_old(Worker* w, Slot* s) {
  FiberRecord* next = s->next.load(std::memory_order_relaxed);
  if (!next) return false;
  Worker* holder = s->holder.load(std::memory_order_acquire);
  if (!holder) return true;
  uint32_t heartbeat = holder->heartbeat.load(std::memory_order_relaxed);
  uint64_t age = cycles() - w->watched_since;
  if (w->watched == s && w->watched_next == next && w->watched_heartbeat == heartbeat) return age > kStealAgeUs * cycles_per_us;
  // One at a time: another's turn comes when this one is of no use any more.
  if (w->watched && w->watched != s && age <= 2 * kStealAgeUs * cycles_per_us) return false;
  w->watched = s;
  w->watched_next = next;
  w->watched_heartbeat = heartbeat;
  w->watched_since = cycles();
  return false;
}

FiberRecord* steal(Worker* w) {
  uint32_t n = slot_count.load(std::memory_order_acquire);
  w->random = w->random * 1664525 + 1013904223;
  uint32_t start = w->random >> 16;
  for (uint32_t i = 0; i < n; i++) {
    Slot* s = slots[(start + i) % n];
    FiberRecord* f;
    if ((f = s->inbox.pop())) return f;
    if (s == w->slot) continue;
    if ((f = s->local.steal_into(w->slot->local)) || (is_old(w, s) && (f = take_next(s)))) {
      w->steals++;
      FIBERTHREAD_PROBE2("steal", f, w);
      if (watched(kWatchTrace)) watch_stolen(f, s->index);
      return f;
    }
  }
  return nullptr;
}

}  // namespace

void stop_searching(Worker* w) {
  if (!w->searching) return;
  w->searching = false;
  if (searching.fetch_sub(1, std::memory_order_seq_cst) == 1 && work_queued()) wake_if_needed();
}

// In worker context: the next fiber to run, after however much sleep.
FiberRecord* find(Worker* w) {
  for (;;) {
    FiberRecord* f;
    if (__builtin_expect(too_many_slots(), 0) && w->slot) give_up_slot(w);
    if (!w->slot && !take_free_slot(w)) {
      // A timer that is due is nobody's if all who hold slots are asleep in the kernel, and sysmon may not know of it.
      run_timers(now_ns());
      if (next_timer() != kNever) sysmon_watch_timers();
      block_put_kept(w);  // there may be many spares
      go_idle(w);
      continue;
    }
    if ((f = pick(w))) return f;
    run_timers(now_ns());
    look_at_poller(w);
    if ((f = pick(w))) return f;
    if (!w->searching) {
      w->searching = true;
      searching.fetch_add(1, std::memory_order_seq_cst);
    }
    uint64_t start = cycles();
    bool made;
    do {
      if ((f = steal(w)) || (f = pick(w))) {
        w->spin_us = kSpinUs;
        return f;
      }
      if ((made = block_populate())) start = cycles();
      else
        for (int i = 0; i < 8; i++) cpu_relax();
    } while (made || cycles() - start < w->spin_us * cycles_per_us);
    if (look_at_poller(w) && (f = pick(w))) return f;
    go_idle(w);
    // Would a full search have found it? Where the next work is always further away, each search takes its time from others: from the
    // program's other end, if that is on the same machine.
    w->spin_us = cycles() - start < 2 * kSpinUs * cycles_per_us ? kSpinUs : w->spin_us / 2;
  }
}

// What find() is to a bound worker. Null: there is no fiber any more.
FiberRecord* await_handed(Worker* w) {
  apply_mask(w, kIdleMask);
  if (next_timer() != kNever) sysmon_watch_timers();
  __atomic_store_n(&w->idle, true, __ATOMIC_RELEASE);
  FiberRecord* f = nullptr;
  CordRecord* c = w->cord;
  auto others_ready = [&] { return c && !c->alone.load(std::memory_order_relaxed) && !c->ready.empty(); };
  while (w->bound && !w->leaves.load(std::memory_order_acquire)) {
    if ((f = c ? pick_of_cord(w) : w->handed.exchange(nullptr, std::memory_order_acq_rel))) break;
    if (c) {
      run_timers(now_ns());
      if (poll_active()) poll_look();
      if (poll_active() && !poll_watched()) sysmon_poke();
    }
    w->wake.exchange(0, std::memory_order_seq_cst);
    if (!w->handed.load(std::memory_order_seq_cst) && !others_ready() && !w->leaves.load(std::memory_order_seq_cst))
      futex_wait(&w->wake, 0);
  }
  __atomic_store_n(&w->idle, false, __ATOMIC_RELEASE);
  return f;
}

}  // namespace fiberthread
