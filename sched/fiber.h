// SPDX-License-Identifier: MIT
// A fiber's record, and how a fiber waits and is woken. Everything above `sched` builds on the calls of this file.
//
// A FiberRecord stands for anything that may wait: a scheduled fiber, or a kernel thread that is not a worker. For such a thread (main
// before the scheduler starts, foreign threads) `run.kernel` is true. The calls below work for both. Where a fiber parks, a kernel thread
// sleeps in the kernel.
//
// States. Several threads may try Parked → Queued at once, so that change is a CAS. Each other change is made by the thread that has the
// fiber:
//
//     Created → Queued → Running → Parked → Queued …        Running → Queued (yield, preemption)        Running → Done
//
// Invariants. A fiber is in a queue, Parked or Done only when it is off its stack. The post-switch action, which runs on the stack of the
// next fiber, sets these states. So a worker that takes a fiber out of a queue may run it at once. While a fiber is Queued, it has one
// queue entry, or one thread has it that will queue or run it. Otherwise it has no queue entry. Records are type-stable: a pointer to one
// can be read for ever. An unpark that comes too late is a spurious wake-up of the record's next fiber. Therefore every wait is a loop on a
// condition of its own.
#pragma once
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>

#include "sched/arch/context.h"
#include "sched/loop_place.h"
#include "sched/spinlock.h"

// Functions of the library in which a fiber may be stopped, as in the program's code. A program may be in these for most of its time. Between
// any two instructions in them, also of what is inlined there, the fiber may move to another worker. This does not hold for functions that they
// call.
#define FIBERTHREAD_STOPPABLE __attribute__((section("fiberthread_stoppable")))

namespace fiberthread {

struct Worker;
struct FiberRecord;
struct CallWait;

enum class State : uint32_t { Created, Queued, Running, Parked, Done };

// Why a fiber waits; for dumps and deadlock reports. All strings are literals.
struct ParkReason {
  const char* what;                    // "mutex", "cond", "join", "sleep", …
  const void* object = nullptr;        // address of the thing waited on
  const FiberRecord* owner = nullptr;  // the fiber that holds it, where known
  // The end of the wait gives the fiber nothing that others may wait for, and no duty to wake them. So the woken fiber may stand in a queue behind
  // fibers that run for long.
  bool plain = false;
  int line = __builtin_LINE();
  const char* file = __builtin_FILE();
};

// ParkReason::what of a fiber that waits for another fiber's end. The scheduler compares the pointer.
inline constexpr char kJoin[] = "join";

// Bits of FiberRecord::run.interrupts. A thread that sets one for another fiber also unparks that fiber, as interrupt() does. A wait that
// an interrupt may end looks for it after each park.
enum Interrupt : uint32_t {
  kInterruptUnwind = 1,     // the embedder wants the fiber to end by unwinding; Embedder::end_requested() says whether it may now
  kInterruptSafePoint = 2,  // the embedder wants the fiber to call Embedder::at_safe_point()
  kInterruptEnd = 4,        // stays set: each wait that can be ended returns ECANCELED; see add_end_reason()
  kInterruptLeave = 8,      // the code that the embedder ran on top of a wait has ended the fiber, and was left: every wait ends
};

// FiberRecord::handle.fresh. kFresh: the fiber was made, and is neither started nor discarded; its handle may be used although it is not
// valid yet. kClaimed: a thread is about to start or discard it.
constexpr uint32_t kFresh = 1, kClaimed = 2, kDiscarded = 3;

constexpr uint64_t kNever = ~uint64_t{0};  // a deadline that does not come
// Bit of a deadline that was computed from CLOCK_REALTIME. When that clock is set, the deadline counts as passed, and the waiting caller
// asks its clock again. All other deadlines have this bit clear.
constexpr uint64_t kFollowsRealtime = 1;

// Consists of parts. The reset() of a part forgets what the record's next fiber, or kernel thread, must not inherit. Its in_child() does so
// for the fiber that has forked. A new member needs no other code for that.
struct alignas(64) FiberRecord {
  Context context;  // valid while the fiber is off its stack

  // Touched by every switch.
  struct Run {
    std::atomic<State> state{State::Created};
    std::atomic<uint32_t> pending_unpark{0};  // latch: an unpark came while the fiber was Running or Queued
    Worker* worker = nullptr;                 // the worker that runs it; meaningful while Running, stable under Busy
    // A bound fiber's own worker. Set by the fiber itself, under join.lock, or by its creator before the spawn. The fiber moves there when
    // it is next queued. Cleared under join.lock by the worker itself, when no reason for the bond is left.
    std::atomic<Worker*> bound{nullptr};
    FiberRecord* queue_next = nullptr;  // link of inbox, global queue and free lists
    FiberRecord* list_next = nullptr;   // link of its cord's registry, or of the list of all foreign threads' records
    uint64_t sigmask = 0;               // in the kernel's format; the worker has this mask while the fiber runs
    std::atomic<uint32_t> interrupts{0};
    bool kernel = false;  // a kernel thread, which the library does not schedule
    // From the fiber's OwnWait::begin() to its end(), or to its next begin() if it has left the call by a jump. Relaxed, between the fences of
    // begin() and wake_own_wait().
    std::atomic<bool> in_own_call{false};
    std::atomic<bool> heavy{false};  // ran for long before its last wait that was not for an owner; relaxed: sysmon takes a hint

    void reset() {
      pending_unpark.store(0, std::memory_order_relaxed);
      interrupts.store(0, std::memory_order_relaxed);
      in_own_call.store(false, std::memory_order_relaxed);
      heavy.store(false, std::memory_order_relaxed);
      kernel = false;
    }
    void in_child() {  // the caller is the child's only kernel thread
      kernel = true;
      worker = nullptr;
      bound.store(nullptr);
      state.store(State::Running);
      pending_unpark.store(0);
    }
  } run;

  // How the fiber uses its turns on a worker: for preemption, and for the timing of wake-ups. Written by the worker that runs it.
  struct Turns {
    LoopPlace place;
    std::atomic<uint32_t> preempted{0};  // preemptions in a row, without a park in between
    uint32_t calls = 0;                  // of take_turns()
    // Does the fiber go on for long after it has woken another? `woke_at` is the time (cycles()) of the wake-up that is being timed, or 0.
    // `until_timed` counts the wake-ups until the next timed one. `went_on` counts how often in a row the fiber went on, up to 2.
    uint64_t woke_at = 0;
    uint8_t until_timed = 0, went_on = 0;
    bool in_libc = false;   // preempted with its pc inside libc: goes to the front of the global queue
    uint8_t ticks = 0;      // that it went on beside hogs that wait, since it began to run
    uint8_t blocked = 0;    // blocking calls that cost its worker the slot
    uint8_t habits = 0;     // bonds by habit that have ended
    uint8_t slept = 0;      // waits in a row for which a worker had to sleep in the kernel: see OwnWait
    uint8_t own_waits = 0;  // calls of OwnWait::begin() after that

    void reset() {
      place.waits.store(0, std::memory_order_relaxed);
      preempted.store(0, std::memory_order_relaxed);
      woke_at = 0;
      until_timed = went_on = ticks = blocked = habits = slept = own_waits = 0;
      in_libc = false;
    }
  } turns;

  struct Identity {
    bool is_main = false;  // fiber 0
    uint32_t id = 0;       // the virtual tid of a fiber
    uint32_t serial = 0;   // tells apart the fibers that have had this record in turn
    char name[16] = {};
    void* (*start)(void*) = nullptr;
    void* arg = nullptr;
    void* result = nullptr;
    void* entry = nullptr;  // the function that sched_prepare() got
  } identity;

  // See memory/block.h. A record keeps its block as long as both live, so there is no reset.
  struct Memory {
    char* block = nullptr;  // lowest address
    size_t block_size = 0;
    void* tcb = nullptr;        // the TCB, whose address is libc's handle of the thread
    char* stack_low = nullptr;  // usable bounds of the stack in use (the program's own, if it gave one)
    char* stack_high = nullptr;
    stack_t alternate{};    // for signal handlers, as the program set it; size 0: none
    char* guard = nullptr;  // lowest address of the block's guard, unless guard_size is 0
    size_t guard_size = 0;
    uint16_t chunk = 0;  // the chunk that the block is in
    bool user_stack = false;
    bool locked = false;       // its stack and TCB are kept in RAM, see memory/locked.h
    uint32_t guard_asked = 0;  // bytes of guard that the program asked for, if the guard is larger
  } memory;

  struct Wait {
    ParkReason reason{};
    uint64_t since = 0;                         // recent_ns() when it last parked; the lowest bit: the wait has a deadline
    std::atomic<CallWait*> called_by{nullptr};  // the caller, which goes on when this fiber first waits, yields or ends; see sched_call()
    std::atomic<uint32_t> kernel_word{0};       // futex of a kernel thread's park
    uint32_t pins = 0;                          // number of waits by which others may find its stack: nothing unwinds it out of them
    uint32_t pins_below = 0;                    // how many of these the program's innermost handler has interrupted
    uint32_t clock_seen = 0;                    // clock_settings when its last deadline with kFollowsRealtime was computed; 0: never
    bool calling = false;                       // it is in sched_call(): its waits there do not let its own caller go on
    uint8_t rank = 0;                           // waiters of a higher rank are woken first; set by the embedder

    void reset() {
      pins = pins_below = clock_seen = 0;
      calling = false;
      rank = 0;
    }
    void in_child() {  // its caller stayed in the parent
      called_by.store(nullptr);
      calling = false;
    }
  } wait;

  // CPU time, see accounting.h.
  struct Cpu {
    std::atomic<uint64_t> given{0};
    std::atomic<uint64_t> told{0};  // the most that cpu_time_of() has returned
    bool counts_usage = false;      // the fiber has asked for its Usage (accounting.h)

    void reset() {
      counts_usage = false;
      given.store(0, std::memory_order_relaxed);
      told.store(0, std::memory_order_relaxed);
    }
    void in_child() {
      told.store(0);
      counts_usage = false;
    }
  } cpu;

  // For the protocol of life/join.h.
  struct Join {
    SpinLock lock;
    std::atomic<uint32_t> done{0};
    std::atomic<bool> valid{false};  // its handle may be used: the fiber is born, and neither joined nor ended detached
    bool detached = false;
    FiberRecord* joiner = nullptr;  // set under this lock and the joiner's, so that two fibers that join each other notice
    // Set if only the end of the fiber's kernel thread gives up something that it holds: its worker, and the tid. Join waits for that end.
    Worker* leaves_with = nullptr;
    uint32_t leaves_tid = 0;

    void reset() {
      done.store(0, std::memory_order_release);
      __atomic_store_n(&joiner, nullptr, __ATOMIC_RELEASE);
      leaves_with = nullptr;
      detached = false;
    }
    void in_child() {  // a joiner stayed in the parent
      lock.reset();
      joiner = nullptr;
    }
  } join;

  // Reasons for its waits to end. Under join.lock.
  struct Ends {
    bool asked = false;    // end_waits_of() has added its reason
    bool held = false;     // kInterruptEnd stays clear for now
    uint32_t reasons = 0;  // number of reasons to set it

    void reset() {
      asked = held = false;
      reasons = 0;
    }
  } ends;

  // For the trace: sched/observe uses it while it writes one.
  struct Traced {
    uint64_t left_at = 0;  // cycles() when it last left a worker
    uint32_t wait = 0;     // the trace's word for what it waits for, while the trace lacks the end of that wait
    uint32_t queued = 0;   // when it was queued, as queued_clock() tells it, or 0; while delays are observed
  } traced;

  // For the layer that gives out handles of fibers: shim/fibers. `fresh` also keeps a kernel thread that was made for the record from
  // starting, until kernel_record_start() clears it.
  struct Handle {
    std::atomic<uint32_t> woken{0};  // serial + 1: the fiber has a wake-up that no yield has taken yet
    std::atomic<uint32_t> fresh{0};  // 0, kFresh, kClaimed or kDiscarded

    void reset() { fresh.store(0, std::memory_order_relaxed); }
  } handle;

  // For the embedder, zero at first. `sched` does not look inside.
  struct Share {
    alignas(16) unsigned char room[192] = {};

    // In pieces: GCC makes `rep stos` of a longer memset(), which takes longer to begin than these stores take.
    void reset() {
      static_assert(sizeof room % 64 == 0);
      for (size_t i = 0; i < sizeof room; i += 64) __builtin_memset(room + i, 0, 64);
    }
  } embedder;

  // Prepares the record for its next fiber or kernel thread, which `serial` tells from those before. Only the caller has the record.
  void reset(uint32_t serial) {
    identity.serial = serial;  // first, because the holder of an old handle reads it last
    join.reset();
    run.reset();
    turns.reset();
    wait.reset();
    cpu.reset();
    ends.reset();
    handle.reset();
    embedder.reset();
  }
  // Called on the fiber that has forked: makes it the child's main.
  void in_child() {
    identity.is_main = true;
    run.in_child();
    wait.in_child();
    cpu.in_child();
    join.in_child();
  }
};
// One line more cost 8 % of the time to make 500 threads.
static_assert(sizeof(FiberRecord) <= 11 * 64, "put the new member into a hole, or measure");

// The fiber whose thread-local storage this is. Null in worker context, and in a foreign thread that has no record yet. A plain
// initial-exec variable stays right when the fiber changes its worker, because TLS belongs to the fiber.
extern thread_local constinit FiberRecord* tls_current __attribute__((tls_model("initial-exec")));
// While > 0, neither preemption nor an asynchronous signal handler of the program begins here (see Busy).
extern thread_local constinit uint32_t tls_busy __attribute__((tls_model("initial-exec")));
// > 0 from a fiber's vfork() until the child has gone. Meanwhile the child, which is another process, runs on the fiber's stack and TLS. It
// waits in the kernel only, and leaves the scheduler alone. The value is the depth, because the child may call vfork() too.
extern thread_local constinit uint32_t tls_vforked __attribute__((tls_model("initial-exec")));

FiberRecord* adopt_kernel_thread();  // makes the record of the calling foreign thread

// Returns the caller's record, which is made on demand for a foreign thread. Not in worker context. Never parks.
inline FiberRecord* self() {
  FiberRecord* f = tls_current;
  return __builtin_expect(f != nullptr, 1) ? f : adopt_kernel_thread();
}

void leave_busy_slow();  // calls Embedder::at_safe_point()
void wait_over_slow(FiberRecord* me);

// A stretch in which the fiber stays on its worker and no handler of the program begins on it. Needed around every use of
// FiberRecord::run.worker, of a SpinLock and of scheduler state. Nests. The fiber may park inside, because the count is the fiber's own. A
// signal that comes meanwhile is recorded, and handled when the outermost Busy ends. A tick of preemption that comes meanwhile does
// nothing.
class Busy {
 public:
  Busy() {
    tls_busy = tls_busy + 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~Busy() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    uint32_t n = tls_busy - 1;
    tls_busy = n;
    if (__builtin_expect(n == 0 && tls_current && tls_current->run.interrupts.load(std::memory_order_relaxed) & kInterruptSafePoint, 0))
      leave_busy_slow();
  }
  Busy(const Busy&) = delete;
};

// `wait.pins` and `wait.pins_below` of a fiber that waits, has a handler on top of that wait, and waits in the handler:
//
//     1, 0   it waits; others may use its Waiter, which lies on its stack
//     1, 1   the handler runs. It may be left by a jump or by the thread's end, and the wait below it is withdrawn then
//     2, 1   the handler waits
//     1, 1 → 1, 0 → 0, 0   the handler's wait is over; the handler has returned; the wait is over

// Returns true if the caller is in a wait by which others may find its stack, and not in a handler on top of it. As under Busy, no handler
// of the program may begin here, because it might never return. The handler of a recorded signal runs in park_if(), which can be left, or
// when the wait is over.
inline bool in_wait(const FiberRecord* me) { return me->wait.pins > me->wait.pins_below; }

// Returns true if no other wait of the caller lies below the one that it is in, unless a handler that can be left is in between.
inline bool is_only_wait(const FiberRecord* me) { return me->wait.pins == me->wait.pins_below + 1; }

// Ends a wait that began with wait.pins++. Called by the fiber itself. Then does what was put off meanwhile: handlers, and the fiber's end.
inline void wait_over(FiberRecord* me) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  me->wait.pins--;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  uint32_t pending = me->run.interrupts.load(std::memory_order_relaxed);
  if (__builtin_expect(pending & (kInterruptSafePoint | kInterruptUnwind | kInterruptLeave), 0)) wait_over_slow(me);
}

// CLOCK_MONOTONIC in nanoseconds, the clock of all deadlines here.
uint64_t now_ns();

// Number of times that CLOCK_REALTIME was set, plus one.
extern std::atomic<uint32_t> clock_settings;

// Returns true if the deadline ends when CLOCK_REALTIME is set.
constexpr bool follows_realtime(uint64_t deadline) { return deadline != kNever && deadline & kFollowsRealtime; }

// Returns true if the deadline has come, or follows CLOCK_REALTIME and that was set since `me` computed it.
inline bool passed(const FiberRecord* me, uint64_t deadline) {
  if (deadline == kNever) return false;
  // Acquire: a thread that sees the new count sees the new time.
  if (follows_realtime(deadline) && me->wait.clock_seen && me->wait.clock_seen != clock_settings.load(std::memory_order_acquire))
    return true;
  return now_ns() >= deadline;
}

// Waits until *flag != expected, an unpark, an interrupt, or `deadline_ns` (absolute, on now_ns()'s clock; kNever: none). May return for no
// reason, so call it in a loop. Returns false if the deadline has passed. The caller must not hold a SpinLock. `flag` is read before the
// fiber leaves its stack, so a thread that changes it must unpark the fiber afterwards. An unpark that comes before the fiber is Parked
// sets the latch, which is read again once the fiber is Parked.
bool park_if(const std::atomic<uint32_t>* flag, uint32_t expected, const ParkReason& reason, uint64_t deadline_ns = kNever);

// Makes `f` runnable, or sets its latch, so that its next park returns at once. Returns true if this call has made it runnable. Never
// blocks, never runs `f`. From any thread, in any context.
bool unpark(FiberRecord* f);
// A waker calls this before it unparks a fiber that is in a plain wait (see ParkReason), and that others will wait for even so. Relaxed: the
// unpark that follows publishes it.
inline void awaited_by_others(FiberRecord* f) { f->run.heavy.store(false, std::memory_order_relaxed); }

// Forgets an unpark that came for an earlier wait. Called only by the fiber itself, before it publishes a new wait and before it looks at
// its interrupts.
inline void clear_pending_unpark(FiberRecord* self) {
  if (self->run.pending_unpark.load(std::memory_order_relaxed)) self->run.pending_unpark.exchange(0, std::memory_order_seq_cst);
}

// Sets interrupt bits, and unparks `f` so that it sees them. Returns true if this call has made it runnable.
bool interrupt(FiberRecord* f, uint32_t bits);
// Does so for a fiber that may be in a system call, where it sees no bits. Returns the worker on which it runs, whose thread has to be sent
// a signal. Null: it does not run, or it sees the bits before its next system call.
Worker* interrupt_running(FiberRecord* f, uint32_t bits);

// Add and drop a reason for the fiber's waits to end. kInterruptEnd is set while there is a reason and it is not held back. The fiber
// lives.
void add_end_reason(FiberRecord* f);
void drop_end_reason(FiberRecord* me);
// Adds a reason, once in the fiber's life. Returns false, and does nothing, if `f` does not live. Calls lives(f, data) under join.lock, so
// that the answer holds.
bool end_waits_of(FiberRecord* f, bool (*lives)(FiberRecord* f, const void* data), const void* data);
// Holds kInterruptEnd back, or lets it be set again. Returns whether it was held back before.
bool hold_end(FiberRecord* me, bool hold);

// Returns true if the caller should park. Kernel threads, most bound fibers and children of a vfork wait in the kernel instead. A fiber of
// a cord parks, except in a callback of the cord's scheduler fiber.
bool may_park();
// Called where may_park() has returned false, and the caller would wait in the kernel for what others wait for by parking. Returns true if it
// may park after all: it was bound by habit, and has given that up just now. Does nothing under Busy.
[[gnu::cold]] bool give_up_habit();

// Returns true if others probably wait for the caller's worker. A caller that spins then may keep the very fiber that it spins for from
// running.
bool keeps_others_waiting();

// Lets others run. A fiber goes to the end of the queue; the result is true if others were there to run instead. A kernel thread calls the
// kernel's sched_yield.
bool give_way();

// Called before the caller waits in the kernel. If it is bound, and still on another worker, it moves to its own: signals that the kernel has
// for it may come there only. Does nothing under Busy.
inline void go_to_own_worker() {
  FiberRecord* me = tls_current;
  Worker* own = me ? me->run.bound.load(std::memory_order_relaxed) : nullptr;
  if (__builtin_expect(own != nullptr, 0) && own != me->run.worker && !me->run.kernel && tls_busy == 0) give_way();
}

// take_turns() is called at the beginning of each call that waits for data. A fiber that finds data every time never waits. Only the
// kernel's ticks stop it, and meanwhile only sysmon looks at the poller. So a fiber that has run for a while looks at the poller itself,
// and gives way to the fibers that can run.
void end_turn();
inline void take_turns() {
  FiberRecord* me = tls_current;
  if (__builtin_expect(me && !(++me->turns.calls % 8), 0)) end_turn();
}

// Stands around a call that is `likely` to sleep in the kernel. If other fibers wait for a slot, they get this one at once, and not only
// when sysmon finds the caller asleep. Unwinding may leave the call without end(). Not under Busy.
class Blocking {
 public:
  // A fiber that makes long calls again and again is bound to its kernel thread.
  enum class Sleep { Long, Short };
  explicit Blocking(bool likely = true) {
    if (likely) begin();
  }
  explicit Blocking(Sleep sleep) { begin(sleep); }
  ~Blocking() { end(); }
  Blocking(const Blocking&) = delete;

  // For a call that begins in one function and returns in another.
  static void begin(Sleep sleep = Sleep::Long);
  static void end();
};

// A wait of an event loop in the kernel, in the program's own call, while the worker's slot is free: one system call instead of four, and all
// events that have come by then. It is for callers whose last waits have put the worker to sleep in the kernel anyway; the others are woken
// faster by parking. kInterruptEnd ends the call with EINTR. Unwinding may leave the call without end(). Not under Busy.
class OwnWait {
 public:
  // Returns false if the caller must park. May be called only if may_park(). Does not park.
  static bool begin();
  static void end();
  // Called under Busy after a wait by parking.
  static void parked();
};

// In run/rivals.cpp. Called with what a call that asks for descriptors returns: how many are ready, or less than 1. If the caller has parked for
// it, that is counted already, and it is one less.
void count_events(long n);

}  // namespace fiberthread
