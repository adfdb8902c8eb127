// SPDX-License-Identifier: MIT
// Shared by the files of this folder, which run fibers and look for them. No other file includes this.
//
// slots.cpp and idle.cpp say what `idle_lock` protects. Functions marked "idle lock" are called with it held.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/chaos.h"
#include "sched/explore/explore.h"
#include "sched/observe/observe.h"
#include "sched/spinlock.h"
#include "sched/worker.h"

// Otherwise the compiler would take the variables for those of another library, and look for them in a table.
#pragma GCC visibility push(hidden)
namespace fiberthread {

// ---- slots.cpp ----

extern Slot* slots[kMaxSlots];
extern std::atomic<uint32_t> slot_count;
extern GlobalQueue global_queue;
extern SpinLock idle_lock;
extern Slot* free_slots;
extern std::atomic<uint32_t> free_slot_count;
// Number of slots held or free, and number of slots wanted.
extern std::atomic<uint32_t> circulating, wanted;
extern std::atomic<uint32_t> reserve_count, reserve_wanted;

constexpr uint32_t kMostLeft = 2;  // fibers in a local queue that one worker may keep to itself, beside the slot's `next`

inline bool slot_has_work(const Slot* s) { return s->next.load(std::memory_order_relaxed) || !s->local.empty() || !s->inbox.empty(); }

inline bool is_reserve(const Slot* s) { return s->reserve.load(std::memory_order_relaxed); }
// Returns true if there are more slots of the kind of `s` than wanted.
inline bool too_many_like(const Slot* s) {
  return is_reserve(s) ? reserve_count.load(std::memory_order_relaxed) > reserve_wanted.load(std::memory_order_relaxed)
                       : circulating.load(std::memory_order_relaxed) > wanted.load(std::memory_order_relaxed);
}
bool leave_reserve_if_possible(Slot* s);  // returns true if s, the caller's, is not of the reserve any more
bool all_slots_free();                    // no worker holds a slot, nor one of the reserve

// A number of 16 bits, for choices. The worker itself calls it.
inline uint32_t random_number(Worker* w) {
  w->look.random = w->look.random * 1664525 + 1013904223;
  return w->look.random >> 16;
}

inline FiberRecord* take_next(Slot* s) {
  return s->next.load(std::memory_order_relaxed) ? s->next.exchange(nullptr, std::memory_order_acq_rel) : nullptr;
}

Slot* slot_in_use(uint32_t number);  // returns a slot in use, chosen by any `number`
void add_free_slot(Slot* s);         // idle lock
Slot* pop_free_slot();               // idle lock
void empty_slot(Slot* s);            // moves its fibers to the global queue; from its holder, or under the idle lock if it has none
void give_up_slot(Worker* w);        // gives up the worker's slot, as there are too many

// ---- hogs.cpp ----

extern GlobalQueue hogs;  // all in one line, since each would get more on a slot with few of them
// While there is a reserve: fibers that ran for long before the wait that is over, and those that were preempted, but are no hogs yet. They go
// before the hogs, but not to the reserve.
extern GlobalQueue heavy_queue;
inline bool hogs_wait() { return !hogs.empty() || !heavy_queue.empty(); }

void push_hog(Worker* w, FiberRecord* f);   // f has just run on w
FiberRecord* pop_hog(Worker* w, bool due);  // the next hog for w, or null
bool hogs_are_next_slow(Worker* w);
// Returns true if w has run no hog for so long that its next fiber is to be one.
inline bool hogs_are_next(Worker* w) { return w->look.without_hog.load(std::memory_order_relaxed) && hogs_are_next_slow(w); }
void next_is_hog(Worker* w);  // the next fiber that the caller picks is a hog, if there is one

// ---- idle.cpp ----

// Number of workers that search for work to steal. While there is one, no other needs to be woken. The last one to find work wakes the
// next.
extern std::atomic<uint32_t> searching;
// Called under the idle lock by a worker that is about to give up its slot, if it has one, and to sleep elsewhere than in go_idle(). Returns
// false if only sysmon is left to watch the poller.
bool poll_needs_no_sysmon(Worker* w);
void leave_own_wait(Worker* w);  // w no longer counts among those whose fiber is in an OwnWait; does nothing if it did not
void go_idle(Worker* w);         // gives the slot back, and sleeps until there may be work, or w must end; returns with or without a slot
bool look_at_poller(Worker* w);

// ---- run.cpp ----

// A stretch of scheduler code that may use the worker's slot. The other side of the protocol is try_take() in sysmon.cpp.
class Entry {
 public:
  explicit Entry(Worker* w) : w_(w), before_(w->run.in_sched.load(std::memory_order_relaxed)) {
    w->run.in_sched.store(1, std::memory_order_relaxed);
    chaos_delay();
    // Either sysmon sees this store after its membarrier, or the load below sees sysmon's request.
    entry_fence();
    if (__builtin_expect(w->run.revoked.load(std::memory_order_relaxed) != kKept, 0)) settle(w);
  }
  ~Entry() { w_->run.in_sched.store(before_, std::memory_order_release); }

  [[gnu::cold]] static void settle(Worker* w);  // called if sysmon has asked for the slot, or taken it, meanwhile

 private:
  Worker* w_;
  uint32_t before_;
};

// Post-switch actions for suspend(): each sets the state of the fiber once it is off its stack.
void post_park(Worker* w, FiberRecord* f);
void post_yield(Worker* w, FiberRecord* f);
void post_turn(Worker* w, FiberRecord* f);
void post_preempt(Worker* w, FiberRecord* f);

FiberRecord* pick(Worker* w, bool preempting = false);
FiberRecord* pick_of_cord(Worker* w);

// ---- explored.cpp ----

FiberRecord* explored_pick();  // pick() while `exploring`
bool explored_idle();          // lets time pass for a worker that has found nothing; false: no timer is set

// ---- blocking.cpp ----

// Hands the worker's slot to a spare, or frees it if no spare can be made. The running fiber goes on without a slot. Inside an Entry.
void hand_own_slot(Worker* w);

// ---- bonds.cpp ----

// Called when w's running fiber has cost it its slot. A fiber that blocks again and again is bound to this kernel thread, and no longer
// holds a slot that others wait for.
[[gnu::cold]] void count_loss(Worker* w);
// Ends the bond of f, which w was handed, if the bond is by habit and f has given up the habit. Returns true if so: f is in a queue then.
bool habit_ended(Worker* w, FiberRecord* f);

// ---- find.cpp ----

FiberRecord* find(Worker* w);          // returns the next fiber to run, after as much sleep as it takes; null: w must end
FiberRecord* await_handed(Worker* w);  // the same for a bound worker; null: there is no fiber any more
void stop_searching(Worker* w);

}  // namespace fiberthread
#pragma GCC visibility pop
