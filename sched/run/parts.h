// SPDX-License-Identifier: MIT
// What the files of this room share: whoever runs fibers, and whoever looks for them. Nobody else includes this.
//
// `idle_lock` protects what slots.cpp and idle.cpp say of it. Functions marked "idle lock" are called with it held.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/chaos.h"
#include "sched/observe/observe.h"
#include "sched/spinlock.h"
#include "sched/worker.h"

// Else the compiler takes the variables for those of another library, and looks for them in a table.
#pragma GCC visibility push(hidden)
namespace fiberthread {

// ---- slots.cpp ----

extern Slot* slots[kMaxSlots];
extern std::atomic<uint32_t> slot_count;
extern GlobalQueue global_queue;
extern SpinLock idle_lock;
extern Slot* free_slots;
extern std::atomic<uint32_t> free_slot_count;
// Slots held or free, and how many there shall be.
extern std::atomic<uint32_t> circulating, wanted;

inline bool slot_has_work(const Slot* s) { return s->next.load(std::memory_order_relaxed) || !s->local.empty() || !s->inbox.empty(); }

inline bool too_many_slots() { return circulating.load(std::memory_order_relaxed) > wanted.load(std::memory_order_relaxed); }

inline FiberRecord* take_next(Slot* s) {
  return s->next.load(std::memory_order_relaxed) ? s->next.exchange(nullptr, std::memory_order_acq_rel) : nullptr;
}

Slot* slot_in_use(uint32_t number);  // one of those in use, numbered as one likes
void add_free_slot(Slot* s);         // idle lock
Slot* pop_free_slot();               // idle lock
void empty_slot(Slot* s);            // by who holds it, or, if nobody does, under the idle lock: what waits in it is the others' then
void give_up_slot(Worker* w);        // for which there is no use any more

// ---- idle.cpp ----

// Workers that look for work to steal. While there is one, nobody needs to be woken; the last to find work wakes the next.
extern std::atomic<uint32_t> searching;
void idle_reset();
void go_idle(Worker* w);  // gives the slot back and sleeps until there may be work; returns with or without a slot
bool look_at_poller(Worker* w);

// ---- run.cpp ----

inline void entry_fence() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (__builtin_expect(no_membarrier.load(std::memory_order_relaxed), 0)) std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Entry into scheduler code that may use the worker's slot; the other side is try_take() in sysmon.cpp.
class Entry {
 public:
  explicit Entry(Worker* w) : w_(w), before_(w->run.in_sched.load(std::memory_order_relaxed)) {
    w->run.in_sched.store(1, std::memory_order_relaxed);
    chaos_delay();
    // Sysmon's membarrier makes this store visible before the load below, or makes the load see its request.
    entry_fence();
    if (__builtin_expect(w->run.revoked.load(std::memory_order_relaxed) != kKept, 0)) settle(w);
  }
  ~Entry() { w_->run.in_sched.store(before_, std::memory_order_release); }

  [[gnu::cold]] static void settle(Worker* w);      // the slot was asked for, or taken, meanwhile
  [[gnu::cold]] static void count_loss(Worker* w);  // the running fiber has cost it the slot

 private:
  Worker* w_;
  uint32_t before_;
};

void apply_mask(Worker* w, uint64_t mask);

// Actions that suspend() takes: what becomes of the fiber once it is off its stack.
void post_park(Worker* w, FiberRecord* f);
void post_yield(Worker* w, FiberRecord* f);
void post_turn(Worker* w, FiberRecord* f);
void post_preempt(Worker* w, FiberRecord* f);

FiberRecord* pick(Worker* w, bool preempting = false);
FiberRecord* pick_of_cord(Worker* w);

// ---- find.cpp ----

FiberRecord* find(Worker* w);          // in worker context: the next fiber to run, after however much sleep
FiberRecord* await_handed(Worker* w);  // the same for a bound worker; null: there is no fiber any more
void stop_searching(Worker* w);

}  // namespace fiberthread
#pragma GCC visibility pop
