// SPDX-License-Identifier: MIT
// Slots, workers and what the files of `sched` share: the inside of the scheduler. Only those of the embedder's files that deal with kernel
// threads as such include it.
//
// Lock order: TimerWheel → idle lock → (Inbox, GlobalQueue). None is held across a switch or a blocking call.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/explore/explore.h"
#include "sched/fiber.h"
#include "sched/preempt.h"
#include "sched/queue.h"
#include "sched/scheduler.h"
#include "sched/syscall.h"
#include "sched/timer.h"

namespace fiberthread {

constexpr uint32_t kMaxSlots = 1024;

// The right to run fibers. Only its holder pushes into `local`.
struct Slot {
  Inbox inbox;
  // A fiber to run next, before those in `local`. Other workers may take it once it is old: see is_old().
  alignas(64) std::atomic<FiberRecord*> next{nullptr};
  TimerWheel timers;
  std::atomic<Worker*> holder{nullptr};
  std::atomic<bool> retired{false};  // no worker may hold it
  std::atomic<bool> reserve{false};  // for fibers that are no hogs, see slots.cpp; relaxed: others get a hint, and the holder needs no more
  // For sysmon: what it found in `next`, and the holder's heartbeat then.
  FiberRecord* seen_next = nullptr;
  uint32_t seen_heartbeat = 0;
  Slot* free_next = nullptr;
  uint32_t index = 0;
  LocalQueue local;  // last, since it ends in its ring: all else shares the first pages
};

enum Revoked : uint32_t { kKept = 0, kAsked = 1, kTaken = 2 };  // kAsked: sysmon wants the slot. kTaken: another worker has it

constexpr uint32_t kSpinUs = 20;  // a worker searches for so long before it sleeps, while that pays

// The fiber's record above 16 bits of the time, and why the fiber before went above the other 32 bits; the time is 0 or cycles().
struct FlightRecord {
  uint64_t fiber, why;
};
struct FlightClocks {
  uint64_t cycles, ns, cycles_per_us;
};
extern FlightClocks flight_zero;  // both clocks at the same time

// A kernel thread that runs fibers. The record is never freed, because others may read it at any time. It outlives its kernel thread, and
// then serves another. It has parts: reset() of a part forgets what the next kernel thread must not inherit. Parts without one
// keep their values, or are empty when a kernel thread ends.
struct alignas(64) Worker {
  Context context;  // worker context, while a fiber runs

  struct Run {
    Slot* slot = nullptr;
    struct CordRecord* cord = nullptr;  // the cord whose fibers it runs; changed by itself, while no fiber can be woken there
    std::atomic<FiberRecord*> running{nullptr};
    void (*post)(Worker*, FiberRecord*) = nullptr;  // post-switch action on `previous`, called on the stack that runs next
    FiberRecord* previous = nullptr;
    // Set while the worker is in scheduler code and may use its slot. Sysmon takes the slot only while it is clear. sysmon.cpp has the
    // protocol with `revoked`.
    std::atomic<uint32_t> in_sched{0};
    std::atomic<uint32_t> revoked{kKept};
    std::atomic<bool> taken_unwanted{false};  // when the slot was taken, no fiber waited for it; published by `revoked`
    std::atomic<uint32_t> heartbeat{0};       // switches made; wraps
    uint64_t kernel_mask = 0;                 // signal mask of the kernel thread

    void reset() {
      slot = nullptr;
      cord = nullptr;
    }
  } run;

  // See observe/flight.h. The ring is part of Thread::mapping.
  struct Flight {
    struct FlightRecord* ring = nullptr;
    uint32_t mask = 0, next = 0;
  } flight;

  // For the choice of the next fiber.
  struct Look {
    uint32_t tick = 0;         // times that it has looked for work
    uint32_t next_streak = 0;  // fibers run from `next` in a row
    // The turn of the running fiber: the heartbeat at which end_turn() first saw it, and cycles() then.
    uint32_t turn = 0;
    uint64_t turn_began = 0;
    // When the running fiber's run began, in cycles(): when the worker went on to it, or it came back from its OwnWait; later by the time of each
    // Blocking. A hint: nested calls and changes of the worker make it wrong. Old unless kObserveRuns is set.
    uint64_t run_began = 0;
    uint64_t slept_at = 0;                 // cycles() at its last Blocking::begin() while kObserveRuns was set
    bool depth_first = false;              // the last fiber to wait here was in a join: the fiber that was queued last comes first
    std::atomic<bool> oldest_due{false};   // set by sysmon: once, the oldest comes first all the same
    std::atomic<uint32_t> without_hog{0};  // sysmon's looks since a hog last left it; relaxed, as a lost count or reset does no harm
    std::atomic<uint32_t> own_hogs{0};     // hogs in the line that ran here last; relaxed, as a wrong count does no harm
    uint32_t hogs_taken = 0;               // wraps
    bool ran_hog = false;                  // a hog has run, and without_hog is yet to be reset
    bool due_is_heavy = false;             // the last fiber that ran as a due hog was to be one of heavy_queue
    bool timer_added = false;              // a fiber has added a timer since the worker last went on to another fiber
    bool searching = false;                // counted in `searching`, run/idle.cpp
    bool own_wait = false;                 // counted in `own_waits`, run/blocking.cpp
    FiberRecord* slept_for = nullptr;      // the fiber that find() gave last, if the worker has slept before
    uint32_t random = 0;
    uint32_t spin_us = kSpinUs;  // how long it searches before it sleeps
    // A slot whose `next` it may steal, if that stays as it is: see is_old().
    struct Candidate {
      Slot* slot = nullptr;
      FiberRecord* next = nullptr;
      uint32_t heartbeat = 0;
      uint64_t since = 0;  // cycles()
    } candidate;

    void reset() {
      searching = own_wait = false;
      own_hogs.store(0, std::memory_order_relaxed);
    }
  } look;

  // Free blocks of one class, and ids for fibers, for use without a lock; see memory/block.cpp.
  struct Kept {
    void* of_class = nullptr;
    FiberRecord* first = nullptr;
    uint32_t count = 0, next_id = 0;
  } kept;

  // For a bound worker, which runs that fiber only and holds no slot. A running worker changes it by itself.
  struct Bond {
    FiberRecord* fiber = nullptr;
    std::atomic<FiberRecord*> handed{nullptr};  // the fiber while it is runnable: this is its queue entry
    // Why it lasts; 0: habit alone. Changed under the fiber's join.lock, which orders it. Relaxed where it is read without.
    std::atomic<Reasons> reasons{0};
    // The kernel sends the fiber's signals to this worker's kernel thread. So that also lets in, while the fiber is parked, what the fiber
    // waits for by sigwait. Relaxed: the thread that sets this wakes the fiber afterwards, and the worker reads it when the fiber has run.
    std::atomic<bool> takes_signals{false};
    // The mask that the kernel thread has, or is to get, while its fiber is parked. Sequentially consistent: sched_await_blocked() reads it
    // against `kernel_mask`, which changes after this on the way to sleep. On the way back it changes before this, or stays if the fiber
    // goes on: then a caller there waits until the fiber runs.
    std::atomic<uint64_t> asleep_with{kIdleMask};
    // While the fiber is bound by habit, since the last look at that: its waits for which it need not be bound, and how often the kernel
    // thread has slept in these.
    uint32_t waits = 0, slept_in_waits = 0;
    uint64_t slept = 0;  // how often the kernel thread had ever slept at that look; 0: there was none
    // Until when the parked fiber waits, see park_if(). Changed by the worker itself; the look for a deadlock reads it.
    std::atomic<uint64_t> wait_until{kNever};
    bool waited_until = false;  // its last wait had such a time

    void reset() {
      fiber = nullptr;
      handed.store(nullptr, std::memory_order_relaxed);
      reasons.store(0, std::memory_order_relaxed);
      takes_signals.store(false, std::memory_order_relaxed);
      waits = slept_in_waits = 0;
      slept = 0;
    }
  } bond;

  // Its kernel thread.
  struct Thread {
    int32_t tid = 0;
    std::atomic<uint32_t> kernel_tid{0};  // cleared by the kernel when the thread is gone
    bool initial = false;                 // the kernel thread that the process began with
    bool tainted = false;                 // it has properties of its own, so it is of no use to other fibers
    std::atomic<bool> leaves{false};      // it must end once its fiber has ended
    bool published = false;               // it is in the list of all workers
    // See signal_worker(). Sequentially consistent: a sender sees `executes`, or what a fiber has blocked, or that thread sees the sender.
    std::atomic<bool> executes{false};
    std::atomic<uint32_t> senders{0};
    bool owes_its_end = false;  // others wait for what its end gives up, such as robust_list
    void* robust_list[3] = {};  // room for a list of robust mutexes, in the kernel's form, for when it ends
    // Its stacks and TCB. They are given back some time after the kernel thread has ended.
    char* mapping = nullptr;
    size_t mapping_size = 0;
    char* stack = nullptr;
    size_t stack_size = 0;
    char* signal_stack = nullptr;  // its alternate stack, always installed
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
    std::atomic<uint32_t> in_poller{0};  // it sleeps in epoll, not on `wake`
    Worker* next = nullptr;
    bool listed = false;               // it is in the idle list (under the idle lock), or waits outside of it
    std::atomic<uint32_t> follows{0};  // futex: the version of main's mask that it sleeps with, see run/masks.cpp; 0: none
    long slack = -1;                   // ns, of its kernel thread's timers; negative: it has not asked

    void reset() { slack = -1; }
  } idle;

  // For run/place.cpp: what the worker's set of CPUs was before another thread changed it to wake the worker.
  struct Place {
    std::atomic<uint32_t> state{0};
    uint32_t cpu = 0;    // where it fell asleep
    uint64_t since = 0;  // cycles() then; 0: the worker is new
    long size = 0;       // bytes of the set; 0: it was not changed
    uint64_t cpus[16];
  } place;

  struct Cpu {
    std::atomic<uint64_t> mark{0};  // its CPU clock up to here was given to fibers, see accounting.h
    uint64_t cycles = 0;            // cycles() at the mark
    uint64_t looked = 0;            // cycles() when that clock was last read

    void reset() { mark.store(0, std::memory_order_relaxed); }
  } cpu;

  // Fibers made and ended here, and numbers for the statistics. Written by the worker itself.
  struct Counts {
    std::atomic<uint64_t> spawned{0}, ended{0};
    uint64_t switches = 0, parks = 0, steals = 0;
    std::atomic<uint64_t> preemptions{0};
    uint64_t polls = 0;
    uint64_t events = 0;  // see count_events()
  } counts;

  // For preemption.
  struct Ticks {
    int timer = -1;  // -1: it has none, or a perf event with the page below
    long sampling_page = 0;
    uint32_t beat = 0;                  // the heartbeat at the last tick
    bool whole = false;                 // that was the heartbeat at the tick before, too
    std::atomic<uint32_t> long_run{0};  // the heartbeat at which sysmon last found a long turn; relaxed, a hint
  } ticks;

  // For sysmon: its notes from look to look.
  struct Notes {
    uint32_t heartbeat = 0, stuck_looks = 0;
    uint64_t stuck_cpu = 0;  // its CPU time at the first of these looks
    uint64_t beat_at = 0;    // the look that first saw this heartbeat
    uint64_t cpu = 0, at = 0;
    uint32_t off_cpu = 0;  // looks that found it off the CPU, with the same fiber; not 0: sysmon looks again soon
    uint64_t rotated_at = 0;
    // For the stall watch: the heartbeat at which the worker seemed stuck, since when it runs its fiber as far as is known, its CPU time at the
    // last look, and when that was; 0: that heartbeat is done with.
    uint32_t stall_beat = 0;
    uint64_t stall_since = 0, stall_cpu = 0, stall_at = 0;
  } notes;

  // For sched/observe.
  struct Observed {
    struct ObservedWorker* by = nullptr;  // see observe/observe.h
    std::atomic<uint64_t> taken_at{0};    // cycles() when another worker got its slot because it slept; only while that is observed
  } observed;

  // For the embedder.
  struct Share {
    std::atomic<uint64_t> poked{0};  // signals that the library has sent here as pokes, and that may still be pending
  } embedder;

  void reset() {
    run.reset();
    look.reset();
    idle.reset();
    bond.reset();
    thread.reset();
    cpu.reset();
  }
};

constexpr size_t kSignalStack = 256 * 1024;

// The calling worker. In worker context only.
extern thread_local constinit Worker* tls_worker __attribute__((tls_model("initial-exec")));

// Returns the caller's worker, in worker context too. Null on kernel threads that are not workers. Under Busy.
inline Worker* this_worker() {
  FiberRecord* me = tls_current;
  return !me ? tls_worker : me->run.kernel ? nullptr : me->run.worker;
}

// ---- between the files of sched ----
// Returns true if f was preempted so often in a row, without a wait in between, that it probably computes or spins.
inline bool is_hog(const FiberRecord* f) { return f->turns.preempted.load(std::memory_order_relaxed) >= 3; }
// Returns true if f ran for long before its last wait. A reserve is not for such fibers (run/slots.cpp).
inline bool is_heavy(const FiberRecord* f) { return f->run.heavy.load(std::memory_order_relaxed); }
// In the handler of a tick. Returns true if the fiber has had the worker for about a millisecond, or since the tick before.
inline bool runs_long(const Worker* w) {
  return w->ticks.whole || w->ticks.long_run.load(std::memory_order_relaxed) == w->run.heartbeat.load(std::memory_order_relaxed);
}
// Returns true if f probably spins: it is a hog that was in the same loop at most ticks.
inline bool is_spinner(const FiberRecord* f) { return is_hog(f) && f->turns.place.probably_waits(); }
// These three are hidden. Otherwise the compiler would take them for variables of another library, and look for them in a table.
extern uint64_t cycles_per_us __attribute__((visibility("hidden")));
// now_ns() of about a tick ago, for code that must not pay for a clock. Stored by sysmon, and by workers that wake up.
extern std::atomic<uint64_t> recent_ns __attribute__((visibility("hidden")));
// Set where membarrier is missing (old kernel, sandbox). Then each entry to the scheduler has a barrier of its own.
extern std::atomic<bool> no_membarrier __attribute__((visibility("hidden")));
// Makes every kernel thread pass a memory barrier. After its barrier, a thread sees what the caller stored before the call. What it stored
// before its barrier, the caller sees after the call.
void barrier_everywhere();
// The other side of barrier_everywhere(), on a fast path: stands between a store and a load, and costs nothing where there is a membarrier.
inline void entry_fence() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (__builtin_expect(no_membarrier.load(std::memory_order_relaxed), 0)) std::atomic_thread_fence(std::memory_order_seq_cst);
}
[[noreturn]] void worker_loop(Worker* w);
void empty_unheld_slots();    // moves fibers in free and retired slots to the global queue, where a worker looks before it steals
bool want_slots(uint32_t n);  // sets the number of slots to n; false without memory
uint32_t slots_wanted();

bool take_free_slot(Worker* w);
void hold_slot(Worker* w, Slot* s);
void enqueue_woken(FiberRecord* f);  // queues a woken or new fiber: as the slot's `next`, if that is free
void enqueue_round_robin(FiberRecord* f);
// Leaves the fiber's stack. The stack that runs next calls `post` for the fiber. Under Busy. `first`, if given, is the fiber that runs
// next: it is Queued, but in no queue. If it cannot run here, suspend() queues it.
void suspend(FiberRecord* me, void (*post)(Worker*, FiberRecord*), FiberRecord* first = nullptr);
// Lets the fiber that has called `me` go on, as `me` is about to wait. From the thread that has `me`.
void release_caller(FiberRecord* me);
void park_for(FiberRecord* me, FiberRecord* first);  // parks `me` and runs `first`; may return for no reason
void arrive(FiberRecord* me);                        // called first on the fiber's stack after a switch to it
bool any_free_slot();
bool free_slot_for(Waiting waiting);  // returns true if a free slot may run these
void want_reserve(uint32_t n);        // sets the number of slots of the reserve (run/slots.cpp) to n; there may be fewer without memory
bool reserve_is_wanted();
bool has_reserve(const Worker* w);  // w holds a slot of it; from any thread, a hint
void free_heavy_queue();            // moves its fibers to the global queue, once there is no reserve
// Whether it pays to wake a worker for a fiber in a slot's `next`. A hint. Paid: a worker has stolen a fiber since the last such wake-up.
// Try: sysmon wants to know. It tries the more rarely, the more wake-ups in a row were in vain.
enum class WakePays : uint8_t { No, Try, Paid };
extern std::atomic<WakePays> wake_pays __attribute__((visibility("hidden")));
// Wakes or starts a worker if a slot is free and no worker searches. Called after work was queued, and after a full fence.
void wake_if_needed(Waiting waiting = Waiting::Others);
void wake_for_queued();  // does so for what is in all queues, if anything is
// Returns null without memory or threads. With `moves`, the caller goes on, so the new thread begins on another CPU (run/place.cpp).
Worker* start_worker(Slot* s, FiberRecord* bound = nullptr, bool moves = false);
void get_up(Worker* w);  // ends w's sleep, on its futex or in epoll; in any context
// The pool: the workers that hold slots, or may get one. A worker is in it unless it is bound. leave_pool() is called before a worker of
// the pool is bound, and returns false if it is the last. It must stay then, because there may be no memory or thread for another.
void join_pool();
bool leave_pool();
// Lets w go, whose fiber needs it no more: into the pool, or to its end, if it is of no use to other fibers.
void part_from_worker(Worker* w);
// Adds a reason for the bond of `own`. Under the join lock of its fiber, so that the end of that, and the end of the bond, see it.
void add_reason(Worker* own, Reasons why);
extern std::atomic<uint32_t> helpers;
Worker* all_helpers();                      // as all_workers(); they never end
[[noreturn]] void leave_worker(Worker* w);  // ends the kernel thread; in worker context
bool may_end(Worker* w);                    // returns true if the caller, w's kernel thread, keeps nothing that the program may need
// Gives back the stacks of workers that have ended, if their time has come. Returns when that will be; kNever: it does not know of any.
uint64_t free_left_stacks(uint64_t now);
uint64_t left_stacks_due();
bool handed_to_bound(FiberRecord* f, Worker* here);  // if f is bound to another worker than `here`, gives f to that and returns true
bool hand_slot_to_spare(Slot* s);                    // gives a slot that no worker holds to a spare; false: the slot is free now
Slot** all_slots(uint32_t* count);
extern std::atomic<Worker*> worker_list;  // all that there ever were, by Worker::thread.all_next
Worker* all_workers();
// The poller's watcher (poller.h). poll_watched() returns whether there is one. poll_get_watcher() wakes an idle worker to become it,
// unless a worker attends to the poller anyway. poll_wake_again() wakes the watcher again, after another thread has got the event that was
// to end its sleep.
bool poll_watched();
void poll_get_watcher();
void poll_wake_again();
bool poll_left_to_sysmon();  // a worker could run what comes, but none is idle, to watch
Waiting who_waits();         // what is in all queues
bool work_queued();          // returns true if any queue has fibers
bool work_neglected();       // returns true if that is more than a worker may keep to itself, or if it has not switched since the last call
void balance_queues();       // moves fibers from long local queues to the global one: no worker steals while all slots are busy
uint32_t queued_count();     // approximate; an inbox counts as one
uint64_t next_timer();       // returns when the first timer of all slots is due; kNever: there is none
bool timer_attended(uint64_t due);  // an idle worker sleeps until then at most
// Returns when a sleep until `deadline` is to end for a kernel that ends it up to `slack` ns later. After `now`, so that it is a sleep.
inline uint64_t begin_of_slack(uint64_t deadline, uint64_t slack, uint64_t now) {
  return deadline == kNever ? kNever : deadline > now + slack ? deadline - slack : now + 1;
}
void run_timers(uint64_t now);  // fires all that are due
// Opens sysmon's descriptor. Called before sysmon's thread is made, because a table of descriptors that no threads share grows at once. (A
// late sysmon opens it when it begins: to open a file of /proc takes 10 µs.)
void sysmon_prepare();
[[noreturn]] void sysmon_main();
// For an explored process. sysmon_comes_late() is called when the scheduler starts, and returns whether no thread is to be made for sysmon then.
// sysmon_reserve() takes the memory for it. sysmon_begin() makes it, if that has not been done; signal handlers may call it too.
bool sysmon_comes_late();
void sysmon_reserve();
bool sysmon_waits();      // it has not begun
bool sysmon_is_helper();  // it came late, or will
void sysmon_begin_late();
inline void sysmon_begin() {
  if (__builtin_expect(exploring, 0)) sysmon_begin_late();
}
void sysmon_wake();             // makes sure that sysmon does not sleep for long
void sysmon_wake_for_timers();  // does so if a timer is due before it wakes
void sysmon_watch_poller();     // makes sure that it watches the poller, if that is left to it
// In run/blocking.cpp. Called after kInterruptEnd was set for `f`: if that is in an OwnWait, sysmon sends its kernel thread a signal. One that
// comes before the call does not end it. So sysmon asks at each look whether w's fiber is to leave such a wait, and sends another.
void wake_own_wait(FiberRecord* f);
bool own_wait_is_to_end(Worker* w);
int sysmon_tid();
bool sysmon_is_called();   // Embedder::on_sysmon() is due
int sysmon_proc_status();  // the descriptor of /proc/self/status, or -1
// Called when main's mask has got this version. Returns once sysmon blocks all that main blocks, or `anew` once it has set its mask since. What main lets
// in, sysmon lets in at its next look.
void sysmon_adopt_mask(uint32_t version, bool anew);
// In run/rivals.cpp. Sysmon calls rivals_look() at each look. slots_now(): base_slots() without those that are held back; at least 1.
void rivals_look(uint64_t now);
uint32_t slots_now();
// In run/place.cpp. Sysmon calls place_look() at each look. A worker calls place_note() before it falls asleep, and move_back() before it runs a
// fiber. A thread that wakes a worker, and goes on itself, calls will_move() before the worker can see that it is awake, and move_elsewhere()
// before the wake-up.
void place_prepare();
void place_look(uint64_t now);
void place_note(Worker* w);
void will_move(Worker* w);
void move_elsewhere(Worker* w);
void move_back_slow(Worker* w);
inline void move_back(Worker* w) {
  if (__builtin_expect(w->place.state.load(std::memory_order_relaxed), 0)) move_back_slow(w);
}
// In run/masks.cpp.
uint64_t set_kernel_mask(uint64_t mask);          // of the calling kernel thread; returns what without_trap() has made of it
void tell_kernel_mask(Worker* w, uint64_t mask);  // makes the system call for apply_mask()
void let_trap_in(void* ucontext);                 // called in the handler of preempt_let_trap_in()'s signal
// Gives the kernel thread this mask. The caller is `w`.
inline void apply_mask(Worker* w, uint64_t mask) {
  mask = without_trap(mask);
  if (__builtin_expect(w->run.kernel_mask != mask, 0)) tell_kernel_mask(w, mask);
}
void main_mask_of(Worker* w);  // `w` has the process's first thread
uint64_t main_mask();
uint32_t main_mask_version();
// Gives the kernel thread the mask of a worker that sleeps: kIdleMask, or that of its own parked fiber (masks.cpp), or main's
// mask on the process's first thread. From then on sched_set_main_mask() makes the worker get up. So `wake` was cleared before, and the
// worker looks at it afterwards.
void sleep_mask(Worker* w);
void awake_mask(Worker* w);  // called after the sleep

}  // namespace fiberthread
