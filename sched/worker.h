// Slots, workers and the queues between them: the inside of the scheduler. Only `sched` and the few files of the embedder that
// deal with kernel threads as such look in here.
//
// Lock order: TimerWheel → IdleLock → (Inbox, GlobalQueue). None is held across a switch or a blocking call.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/preempt.h"
#include "sched/queue.h"
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

// A kernel thread that runs fibers. Never freed.
struct alignas(64) Worker {
  Context context;  // worker context, while a fiber runs
  Slot* slot = nullptr;
  struct CordRecord* cord = nullptr;         // it runs the fibers of that; changed by itself, while nobody can be woken there
  std::atomic<FiberRecord*> running{nullptr};
  void (*post)(Worker*, FiberRecord*) = nullptr;  // post-switch action on `previous`, run by what comes next
  FiberRecord* previous = nullptr;
  // Set while the worker is in scheduler code and may use its slot. Sysmon takes the slot only if it is clear; see
  // sysmon.cpp for the protocol with `revoked`.
  std::atomic<uint32_t> in_sched{0};
  std::atomic<uint32_t> revoked{kKept};
  std::atomic<uint32_t> heartbeat{0};  // switches made; wraps
  uint32_t tick = 0;                   // looks for work
  uint32_t next_streak = 0;            // fibers run from `next` in a row
  // When the turn of the fiber that runs began, as end_turn() first saw it, at that heartbeat.
  uint32_t turn = 0;
  uint64_t turn_began = 0;
  bool depth_first = false;            // the last that waited here was in a join: what was queued last comes first
  std::atomic<bool> oldest_due{false}; // sysmon's: once, the oldest comes first all the same
  uint64_t kernel_mask = 0;            // signal mask of the kernel thread
  bool timer_added = false;            // since it last went on to another fiber
  bool searching = false;              // counted in Scheduler::searching
  // Free blocks of one class, and fibers' ids, without a lock; see memory/block.cpp.
  void* kept_class = nullptr;
  FiberRecord* kept = nullptr;
  uint32_t kept_count = 0, next_id = 0;
  uint32_t random = 0;
  // A slot whose `next` it may steal, if that stays as it is: see is_old().
  Slot* watched = nullptr;
  FiberRecord* watched_next = nullptr;
  uint32_t watched_heartbeat = 0;
  uint64_t watched_since = 0;          // cycles()
  uint32_t spin_us = kSpinUs;          // how long it searches before it sleeps

  // Of a bound worker: it runs that fiber only, without a slot. Changed by itself.
  FiberRecord* bound = nullptr;
  std::atomic<FiberRecord*> handed{nullptr};   // it, when it is runnable: its queue entry, so to say
  bool initial = false;                  // the kernel thread that the process began with
  bool tainted = false;                  // its kernel thread has got properties of its own: of no use to other fibers
  std::atomic<bool> leaves{false};       // to end, once its fiber has
  bool published = false;                // in the list of all
  std::atomic<uint32_t> kernel_tid{0};   // cleared by the kernel when the thread is gone
  Worker* left_next = nullptr;
  void* robust_list[3] = {};             // room for a list of robust mutexes, in the kernel's form, for when it ends
  bool owes_its_end = false;             // somebody waits for those
  int timer = -1;                        // of preemption, or its perf event's page
  long sampling_page = 0;

  std::atomic<uint64_t> cpu_mark{0};   // of its CPU clock, see accounting.h
  uint64_t cpu_cycles = 0;             // cycles() then,
  uint64_t cpu_looked = 0;             // and when that clock was last read
  int32_t tid = 0;
  std::atomic<uint64_t> poked{0};      // signals that were sent here for our own sake, and may be pending still; the embedder's
  std::atomic<uint32_t> wake{0};       // futex: 1 = get up
  Worker* idle_next = nullptr;
  bool idle = false;                   // in the idle list; under IdleLock
  std::atomic<uint32_t> in_poller{0};  // sleeps there, not on `wake`
  char* stack = nullptr;
  size_t stack_size = 0;
  char* signal_stack = nullptr;        // always installed
  // Sysmon's own notes.
  uint32_t seen_heartbeat = 0, stuck_looks = 0;
  uint64_t seen_cpu = 0, seen_at = 0;
  bool suspected = false;
  uint64_t rotated_at = 0;
  Worker* all_next = nullptr;

  // Fibers made and ended here; written by itself.
  std::atomic<uint64_t> spawned{0}, ended{0};
  // For the statistics.
  uint64_t switches = 0, parks = 0, steals = 0;
  std::atomic<uint64_t> preemptions{0};
  uint64_t polls = 0;
  struct Watched* watch = nullptr;     // see watch.h
  std::atomic<uint64_t> taken_at{0};   // cycles(), when its slot went to another because it slept; only while that is watched
};

constexpr size_t kSignalStack = 256 * 1024;

struct Statistics {
  std::atomic<uint64_t> spawned{0}, ended{0};  // by kernel threads that are no workers
  std::atomic<uint64_t> handovers{0}, polls{0};
  std::atomic<uint64_t> fresh{0};              // births on memory that had no fiber before
  std::atomic<uint64_t> peak{0};               // of live_fibers(), while statistics are asked for
  std::atomic<uint32_t> workers{0};
};
extern Statistics statistics;
uint64_t fibers_spawned();
uint64_t fibers_recycled();

enum class SpawnPolicy { Adaptive, RoundRobin, Local };
enum class DeadlockPolicy { Report, Abort, Off };
enum class Report : uint8_t { None, Text, Json };  // of the statistics, at the end

// What a build may set otherwise (see Makefile); variables and options come before these.
#ifndef FIBERTHREAD_DEFAULT_WORKERS
#define FIBERTHREAD_DEFAULT_WORKERS 0
#endif
#ifndef FIBERTHREAD_DEFAULT_STACK_SIZE
#define FIBERTHREAD_DEFAULT_STACK_SIZE 0
#endif

struct Options {
  uint32_t workers = FIBERTHREAD_DEFAULT_WORKERS;  // 0: as many as CPUs
  SpawnPolicy spawn = SpawnPolicy::Adaptive;
  DeadlockPolicy deadlock = DeadlockPolicy::Report;
  uint32_t preempt_us = 0;  // test aid, 0: at the kernel's tick
  int dump_signal = 0;      // 0: none
  uint64_t stack_size = FIBERTHREAD_DEFAULT_STACK_SIZE;  // 0: what libc says
  Report statistics = Report::None;
  const char* refused = nullptr;  // why threads must be libc's, if that was found before the start
  bool preempt = true, verbose = false, force_nptl = false, fail_self_check = false;
};
extern Options options;

// The worker that the calling kernel thread is, in worker context only.
extern thread_local constinit Worker* tls_worker __attribute__((tls_model("initial-exec")));

extern FiberRecord main_fiber_record;
extern FiberRecord* main_fiber;  // fiber 0; after a fork, the fiber that forked

// The caller's worker, in worker context too; null on kernel threads that are none. Busy.
inline Worker* this_worker() {
  FiberRecord* me = tls_current;
  return !me ? tls_worker : me->kernel ? nullptr : me->worker;
}

// ---- life (life.cpp) ----

// Starts the scheduler if it has not been, and makes the main kernel thread worker 0 if it calls. False if this libc
// cannot be served: threads must be NPTL's then. Any native thread or fiber.
bool sched_start();
bool sched_started();
// Whether this process has ever wanted to start it.
bool sched_asked();
// At library start: the initial thread becomes fiber 0 in name.
void sched_init();

// Lays out the first frame of f, which from then on may be bound; entry runs on the fiber in Busy once. When it returns, the fiber
// ends as by sched_exit().
void sched_prepare(FiberRecord* f, void (*entry)(FiberRecord*));
// Instead of sched_spawn(): gives back a fiber that was prepared.
void sched_discard(FiberRecord* f);
// Makes a born fiber (state Created) runnable.
void sched_spawn(FiberRecord* f);
// Runs a born fiber at once, in place of the caller, which goes on when f first waits, yields or ends; not when it is preempted.
// 0, or ECANCELED if an interrupt in the mask ended the wait before: f runs all the same. Where either is a kernel thread, f runs
// elsewhere and the caller just waits.
struct CallWait {
  FiberRecord* caller;
  std::atomic<uint32_t> over{0};
};
int sched_call(FiberRecord* f, uint32_t interrupt_mask);
// As unpark(). Those that one fiber wakes so, with nothing in between, run in the order of the calls if they run where it runs.
void unpark_in_order(FiberRecord* f);
// Ends the calling fiber from any depth. Its record may be reused at once if detached, else after join.
[[noreturn]] void sched_exit();
// How many slots the program asks for; 0: it does not. FIBERTHREAD_WORKERS goes before it.
void sched_set_concurrency(uint32_t slots);

// Waits until f has ended and takes its result; f is recycled. The caller has made sure that it is the only joiner
// (FiberRecord::joiner). Returns false at the deadline, or when an interrupt in `mask` is set; the caller is no joiner then.
bool sched_join(FiberRecord* f, void** result, uint64_t deadline_ns, uint32_t interrupt_mask);

// Gives f a kernel thread of its own, for what only the kernel can give; it stays there until it ends. Its next run is on
// that thread; the caller, if it is f itself, is there on return. 0, EAGAIN (no memory, no threads), ESRCH (f has ended).
// From fibers; parks.
int sched_bind(FiberRecord* f);
// The caller, a fiber on its own stack, is bound to the kernel thread that it is on, if that is the process's first.
void sched_bind_to_initial();

// Counts the caller, about to end, as ended. True if nobody is left, for the last one alone: it ends the process. Main counts too.
bool sched_count_end();
// Those that have not ended, main included. Never too few; zero is final.
uint64_t live_fibers();

// The kernel refused the last worker that was wanted (RLIMIT_NPROC, a filter).
extern std::atomic<bool> workers_refused;

void sched_block_signals(uint64_t* old);
void sched_restore_signals(uint64_t old);

// Applies the caller's new FiberRecord::sigmask to the kernel thread. Busy.
void sched_apply_mask();

// The record of a kernel thread that is none of ours, and its life: got, by whomever; entered, on the thread; put back by its end if
// it is `detached`, as they are at first, else by who has waited for `done`.
FiberRecord* kernel_record_get();
void kernel_record_enter(FiberRecord* f);
void kernel_record_put(FiberRecord* f);
void kernel_record_each(bool (*visit)(FiberRecord*, void*), void* data);  // until it returns false

// ---- between the files of sched ----
// It was stopped so many times in a row without waiting in between that it must be taken for one that computes, or spins.
inline bool is_hog(const FiberRecord* f) { return f->preempted.load(std::memory_order_relaxed) >= 3; }
// It spins, as far as one can tell: a hog that is always found in the same place.
inline bool is_spinner(const FiberRecord* f) { return is_hog(f) && f->in_place.load(std::memory_order_relaxed) >= 8; }
extern uint64_t cycles_per_us;
// now_ns() of about a tick ago, for who must not pay for a clock: stored by sysmon, and by workers that wake up.
extern std::atomic<uint64_t> recent_ns;
// Without membarrier (old kernel, sandbox) entries to the scheduler pay for the barrier themselves.
extern std::atomic<bool> no_membarrier;
// All kernel threads have passed a barrier since the call: what this one stored before they see from then on, or it sees what they stored.
void barrier_everywhere();
constexpr uint64_t kIdleMask = ~(uint64_t{3} << (kPreemptSignal - 1) | kTrapSignal);  // all signals but libc's two, and that of traps
[[noreturn]] void worker_loop(Worker* w);
void empty_free_slots();                // into the global queue, where who looks for work comes before he steals
bool want_slots(uint32_t n);             // from now on there shall be n; false without memory
uint32_t slots_wanted();
uint32_t base_slots();                   // how many there are without growth
uint32_t cpu_count();                    // that the process may use: by its affinity mask and its cgroup's quota
void slots_reset();                      // in the child of a fork
bool take_free_slot(Worker* w);
void hold_slot(Worker* w, Slot* s);
void enqueue_woken(FiberRecord* f);            // where a woken or new fiber goes: in front, if that place is free
void enqueue_round_robin(FiberRecord* f);
// Leaves the fiber's stack; `post` is run for it by whatever comes next. Busy.
// With `first`, that is what runs next: a fiber that is QUEUED, but in no queue. If it cannot run here it is queued.
void suspend(FiberRecord* me, void (*post)(Worker*, FiberRecord*), FiberRecord* first = nullptr);
// The caller of `me`, which is about to wait, may run on. By whoever has `me`.
void release_caller(FiberRecord* me);
void park_for(FiberRecord* me, FiberRecord* first);  // suspend(), as a wait that may end for no reason
void arrive(FiberRecord* me);                  // the first thing on the fiber's stack after a switch to it
bool idle_slots();
void wake_if_needed();
Worker* start_worker(Slot* s, FiberRecord* bound = nullptr);  // null without memory or threads
void get_up(Worker* w);
// Starts a kernel thread of the library's own that runs no fibers, with all signals but libc's two blocked: its tid, or -1. There
// is one at most. No libc lock.
int start_helper(void (*main)());
extern std::atomic<uint32_t> helpers;
[[noreturn]] void leave_worker(Worker* w);  // ends the kernel thread; in worker context
bool handed_to_bound(FiberRecord* f, Worker* here);  // f is bound to another worker than `here`: it has it now
bool hand_slot_to_spare(Slot* s);        // sysmon: the slot is held by nobody
Slot** all_slots(uint32_t* count);
extern std::atomic<Worker*> worker_list;  // all that there ever were, by Worker::all_next
Worker* all_workers();
// The poller's watcher (poller.h): is there one; get one, if a worker is idle and nobody attends to the poller anyway; and let
// it get up again, after another has got the event that was to end its sleep.
bool poll_watched();
void poll_get_watcher();
void poll_wake_again();
bool work_queued();
void balance_queues();                   // moves from long local queues to the global one: with all slots busy nobody steals
uint32_t queued_count();                 // about; an inbox counts as one
uint64_t next_timer();
void run_timers(uint64_t now);
void sysmon_prepare();                   // before its thread is made: a table of descriptors that is not shared grows at once
void sysmon_main();
void sysmon_poke();                      // make sure that it is awake
void sysmon_watch_timers();              // poke it if a timer is due before it wakes
void sysmon_set_mask(uint64_t mask);      // of the main fiber
// From now on, waits with kFollowsRealtime end when that clock is set. Cheap but the first time.
void sysmon_watch_clock();
void sysmon_clock_was_set();             // ends them
void sysmon_reset();
int sysmon_tid();
// Has Embedder::on_sysmon() called soon. From any context, signal handlers too.
void sysmon_call();
void sched_after_fork_child();

}  // namespace fiberthread
