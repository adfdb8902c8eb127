// SPDX-License-Identifier: MIT
// Slots, workers and what the files of `sched` share: the inside of the scheduler. Of the embedder's files, those look in here that
// deal with kernel threads as such.
//
// Lock order: TimerWheel → idle lock → (Inbox, GlobalQueue). None is held across a switch or a blocking call.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/preempt.h"
#include "sched/queue.h"
#include "sched/scheduler.h"
#include "sched/timer.h"

namespace fiberthread {

constexpr uint32_t kMaxSlots = 256;

// The right to schedule. Its holder alone produces into `local`.
struct Slot {
  LocalQueue local;
  Inbox inbox;
  // A fiber to run next, in front of `local`; others may take it once it is old.
  alignas(64) std::atomic<FiberRecord*> next{nullptr};
  TimerWheel timers;
  std::atomic<Worker*> holder{nullptr};
  std::atomic<bool> retired{false};  // nobody shall hold it
  Slot* free_next = nullptr;
  uint32_t index = 0;
};

enum Revoked : uint32_t { kKept = 0, kAsked = 1, kTaken = 2 };

constexpr uint32_t kSpinUs = 20;  // a worker searches for so long before it sleeps, while that pays

// A kernel thread that runs fibers. Never freed. Made of parts; reset() is for its next kernel thread, and a new member has no other place
// to think of.
struct alignas(64) Worker {
  Context context;  // worker context, while a fiber runs

  struct Run {
    Slot* slot = nullptr;
    struct CordRecord* cord = nullptr;  // it runs the fibers of that; changed by itself, while nobody can be woken there
    std::atomic<FiberRecord*> running{nullptr};
    void (*post)(Worker*, FiberRecord*) = nullptr;  // post-switch action on `previous`, run by what comes next
    FiberRecord* previous = nullptr;
    // Set while the worker is in scheduler code and may use its slot. Sysmon takes the slot only if it is clear; see
    // sysmon.cpp for the protocol with `revoked`.
    std::atomic<uint32_t> in_sched{0};
    std::atomic<uint32_t> revoked{kKept};
    std::atomic<uint32_t> heartbeat{0};  // switches made; wraps
    uint64_t kernel_mask = 0;            // signal mask of the kernel thread

    void reset() {
      slot = nullptr;
      cord = nullptr;
    }
  } run;

  // What it goes by when it looks for the next fiber.
  struct Look {
    uint32_t tick = 0;         // looks for work
    uint32_t next_streak = 0;  // fibers run from `next` in a row
    // When the turn of the fiber that runs began, as end_turn() first saw it, at that heartbeat.
    uint32_t turn = 0;
    uint64_t turn_began = 0;
    bool depth_first = false;             // the last that waited here was in a join: what was queued last comes first
    std::atomic<bool> oldest_due{false};  // sysmon's: once, the oldest comes first all the same
    bool timer_added = false;             // since it last went on to another fiber
    bool searching = false;               // counted in `searching`, run/idle.cpp
    uint32_t random = 0;
    uint32_t spin_us = kSpinUs;  // how long it searches before it sleeps
    // A slot whose `next` it may steal, if that stays as it is: see is_old().
    struct Candidate {
      Slot* slot = nullptr;
      FiberRecord* next = nullptr;
      uint32_t heartbeat = 0;
      uint64_t since = 0;  // cycles()
    } candidate;

    void reset() { searching = false; }
  } look;

  // Free blocks of one class, and fibers' ids, without a lock; see memory/block.cpp.
  struct Kept {
    void* of_class = nullptr;
    FiberRecord* first = nullptr;
    uint32_t count = 0, next_id = 0;
  } kept;

  // Of a bound worker: it runs that fiber only, without a slot. Changed by itself.
  struct Bond {
    FiberRecord* fiber = nullptr;
    std::atomic<FiberRecord*> handed{nullptr};  // it, when it is runnable: its queue entry, so to say

    void reset() {
      fiber = nullptr;
      handed.store(nullptr, std::memory_order_relaxed);
    }
  } bond;

  // Its kernel thread.
  struct Thread {
    int32_t tid = 0;
    std::atomic<uint32_t> kernel_tid{0};  // cleared by the kernel when the thread is gone
    bool initial = false;                 // the kernel thread that the process began with
    bool tainted = false;                 // it has got properties of its own: of no use to other fibers
    std::atomic<bool> leaves{false};      // to end, once its fiber has
    bool published = false;               // in the list of all
    bool owes_its_end = false;            // others wait for what its end gives up, robust_list among it
    void* robust_list[3] = {};            // room for a list of robust mutexes, in the kernel's form, for when it ends
    char* stack = nullptr;
    size_t stack_size = 0;
    char* signal_stack = nullptr;  // always installed
    Worker* left_next = nullptr;
    Worker* all_next = nullptr;

    void reset() {
      leaves.store(false, std::memory_order_relaxed);
      tainted = false;
      owes_its_end = false;
    }
  } thread;

  struct Idle {
    std::atomic<uint32_t> wake{0};       // futex: 1 = get up
    std::atomic<uint32_t> in_poller{0};  // sleeps there, not on `wake`
    Worker* next = nullptr;
    bool listed = false;  // in the idle list; under the idle lock
  } idle;

  struct Cpu {
    std::atomic<uint64_t> mark{0};  // of its CPU clock, see accounting.h
    uint64_t cycles = 0;            // cycles() then,
    uint64_t looked = 0;            // and when that clock was last read

    void reset() { mark.store(0, std::memory_order_relaxed); }
  } cpu;

  // Fibers made and ended here, and what the statistics tell. Written by itself.
  struct Counts {
    std::atomic<uint64_t> spawned{0}, ended{0};
    uint64_t switches = 0, parks = 0, steals = 0;
    std::atomic<uint64_t> preemptions{0};
    uint64_t polls = 0;
  } counts;

  // The share of preemption.
  struct Ticks {
    int timer = -1;  // or its perf event's page
    long sampling_page = 0;
  } ticks;

  // The share of sysmon: its own notes.
  struct Notes {
    uint32_t heartbeat = 0, stuck_looks = 0;
    uint64_t cpu = 0, at = 0;
    bool suspected = false;
    uint64_t rotated_at = 0;
  } notes;

  // The share of sched/observe.
  struct Observed {
    struct ObservedWorker* by = nullptr;  // see observe/observe.h
    std::atomic<uint64_t> taken_at{0};    // cycles(), when its slot went to another because it slept; only while that is observed
  } observed;

  // The share of the embedder.
  struct Share {
    std::atomic<uint64_t> poked{0};  // signals that were sent here for our own sake, and may be pending still
  } embedder;

  void reset() {
    run.reset();
    look.reset();
    bond.reset();
    thread.reset();
    cpu.reset();
  }
};

constexpr size_t kSignalStack = 256 * 1024;

// The worker that the calling kernel thread is, in worker context only.
extern thread_local constinit Worker* tls_worker __attribute__((tls_model("initial-exec")));

// The caller's worker, in worker context too; null on kernel threads that are none. Busy.
inline Worker* this_worker() {
  FiberRecord* me = tls_current;
  return !me ? tls_worker : me->run.kernel ? nullptr : me->run.worker;
}

// ---- between the files of sched ----
// It was stopped so many times in a row without waiting in between that it must be taken for one that computes, or spins.
inline bool is_hog(const FiberRecord* f) { return f->turns.preempted.load(std::memory_order_relaxed) >= 3; }
// It spins, as far as one can tell: a hog that is always found in the same place.
inline bool is_spinner(const FiberRecord* f) { return is_hog(f) && f->turns.in_place.load(std::memory_order_relaxed) >= 8; }
// Hidden: else the compiler takes them for those of another library, and looks for them in a table.
extern uint64_t cycles_per_us __attribute__((visibility("hidden")));
// now_ns() of about a tick ago, for who must not pay for a clock: stored by sysmon, and by workers that wake up.
extern std::atomic<uint64_t> recent_ns __attribute__((visibility("hidden")));
// Without membarrier (old kernel, sandbox) entries to the scheduler pay for the barrier themselves.
extern std::atomic<bool> no_membarrier __attribute__((visibility("hidden")));
// All kernel threads have passed a barrier since the call: what this one stored before they see from then on, or it sees what they stored.
void barrier_everywhere();
[[noreturn]] void worker_loop(Worker* w);
void empty_free_slots();      // into the global queue, where who looks for work comes before he steals
bool want_slots(uint32_t n);  // from now on there shall be n; false without memory
uint32_t slots_wanted();

bool take_free_slot(Worker* w);
void hold_slot(Worker* w, Slot* s);
void enqueue_woken(FiberRecord* f);  // where a woken or new fiber goes: in front, if that place is free
void enqueue_round_robin(FiberRecord* f);
// Leaves the fiber's stack; `post` is run for it by whatever comes next. Busy.
// With `first`, that is what runs next: a fiber that is QUEUED, but in no queue. If it cannot run here it is queued.
void suspend(FiberRecord* me, void (*post)(Worker*, FiberRecord*), FiberRecord* first = nullptr);
// The caller of `me`, which is about to wait, may run on. By whoever has `me`.
void release_caller(FiberRecord* me);
void park_for(FiberRecord* me, FiberRecord* first);  // suspend(), as a wait that may end for no reason
void arrive(FiberRecord* me);                        // the first thing on the fiber's stack after a switch to it
bool idle_slots();
void wake_if_needed();
Worker* start_worker(Slot* s, FiberRecord* bound = nullptr);  // null without memory or threads
void get_up(Worker* w);
extern std::atomic<uint32_t> helpers;
[[noreturn]] void leave_worker(Worker* w);           // ends the kernel thread; in worker context
bool handed_to_bound(FiberRecord* f, Worker* here);  // f is bound to another worker than `here`: it has it now
bool hand_slot_to_spare(Slot* s);                    // sysmon: the slot is held by nobody
Slot** all_slots(uint32_t* count);
extern std::atomic<Worker*> worker_list;  // all that there ever were, by Worker::thread.all_next
Worker* all_workers();
// The poller's watcher (poller.h): is there one; get one, if a worker is idle and nobody attends to the poller anyway; and let
// it get up again, after another has got the event that was to end its sleep.
bool poll_watched();
void poll_get_watcher();
void poll_wake_again();
bool work_queued();
void balance_queues();    // moves from long local queues to the global one: with all slots busy nobody steals
uint32_t queued_count();  // about; an inbox counts as one
uint64_t next_timer();
void run_timers(uint64_t now);
void sysmon_prepare();  // before its thread is made: a table of descriptors that is not shared grows at once
void sysmon_main();
void sysmon_poke();             // make sure that it is awake
void sysmon_poke_for_timers();  // poke it if a timer is due before it wakes
int sysmon_tid();

}  // namespace fiberthread
