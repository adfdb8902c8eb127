// SPDX-License-Identifier: MIT
// What a fiber is, and how one waits and is woken. Everything above `sched` builds on the calls of this file.
//
// A FiberRecord stands for anything that may wait: a scheduled fiber, or a kernel thread that is none (`kernel` is
// true then: main before the scheduler starts, foreign threads). The calls below work for both; where a fiber parks,
// a kernel thread sleeps in the kernel.
//
// States. Only PARKED → QUEUED is contended, and so a CAS; each other change is that of the one who has the fiber:
//
//     CREATED → QUEUED → RUNNING → PARKED → QUEUED …        RUNNING → QUEUED (yield, preemption)        RUNNING → DONE
//
// Invariants. A fiber is QUEUED with a queue entry, PARKED or DONE only when it is off its stack: those states are
// entered by the post-switch action, on the stack of whatever runs next. So whoever finds it in a queue may run it
// at once. It has exactly one queue entry while it is QUEUED and off its stack, else none. Records are type-stable:
// a pointer stays readable for ever, and an unpark that comes too late is only a spurious one for the next user;
// therefore every wait is a loop on a condition of its own.
#pragma once
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>

#include "sched/arch/context.h"
#include "sched/spinlock.h"

namespace fiberthread {

struct Worker;
struct FiberRecord;
struct CallWait;

enum class State : uint32_t { Created, Queued, Running, Parked, Done };

// Why a fiber waits; for dumps and deadlock reports. All strings are literals.
struct ParkReason {
  const char* what;                    // "mutex", "cond", "join", "sleep", …
  const void* object = nullptr;        // address of the thing waited on
  const FiberRecord* owner = nullptr;  // who holds it, where known
  const char* file = __builtin_FILE();
  int line = __builtin_LINE();
};

// ParkReason::what of who waits for another fiber's end, which the scheduler looks at.
inline constexpr char kJoin[] = "join";

// Bits of FiberRecord::run.interrupts. Whoever sets one calls interrupt(), which also unparks; a wait that may be ended by it
// looks after each park.
enum Interrupt : uint32_t {
  kInterruptUnwind = 1,     // the embedder wants the fiber to end by unwinding; whether it may now, Embedder::end_requested() says
  kInterruptSafePoint = 2,  // the embedder wants the fiber to call Embedder::at_safe_point()
  kInterruptEnd = 4,        // stays set: each wait that can be ended returns ECANCELED; see add_end_reason()
  kInterruptLeave = 8,      // what the embedder ran on top of a wait has ended the fiber, and was left: the wait ends, whatever it is for
};

// FiberRecord::handle.fresh. kFresh: made, and neither started nor discarded; its handle may be used though it is not valid yet. kClaimed: one
// or the other is about to happen.
constexpr uint32_t kFresh = 1, kClaimed = 2, kDiscarded = 3;

constexpr uint64_t kNever = ~uint64_t{0};  // a deadline that does not come
// Bit of a deadline that was computed from CLOCK_REALTIME: when that clock is set, it counts as passed, and whoever waits asks
// his clock again. All others have it clear.
constexpr uint64_t kFollowsRealtime = 1;

// Made of parts. Each has what its reset() forgets when the record gets its next fiber, or kernel thread, and what in_child() forgets of the
// fiber that has forked: a new member has no other place to think of.
struct alignas(64) FiberRecord {
  Context context;  // valid while off its stack

  // Touched by every switch.
  struct Run {
    std::atomic<State> state{State::Created};
    std::atomic<uint32_t> pending_unpark{0};  // latch: an unpark came while RUNNING or QUEUED
    Worker* worker = nullptr;                 // that runs it; meaningful while RUNNING, stable under Busy
    // A bound fiber's own worker. Set once in its life, by itself or under join.lock; it moves there when it is next queued.
    std::atomic<Worker*> bound{nullptr};
    FiberRecord* queue_next = nullptr;  // link of inbox, global queue and free lists
    FiberRecord* list_next = nullptr;   // link of its cord's registry, or of the list of all foreign threads' records
    uint64_t sigmask = 0;               // kernel's format; what the worker's kernel mask must be while it runs
    std::atomic<uint32_t> interrupts{0};
    bool kernel = false;  // a kernel thread, not scheduled by us

    void reset() {
      pending_unpark.store(0, std::memory_order_relaxed);
      interrupts.store(0, std::memory_order_relaxed);
      kernel = false;
    }
    void in_child() {  // on the only kernel thread that there is
      kernel = true;
      worker = nullptr;
      bound.store(nullptr);
      state.store(State::Running);
      pending_unpark.store(0);
    }
  } run;

  // How it uses its turns: preemption's share, and that of its wake-ups. Written by the worker that it is on.
  struct Turns {
    std::atomic<uint32_t> preempted{0};  // times in a row, without parking in between
    std::atomic<uint32_t> in_place{0};   // times in a row, where it was stopped the time before
    uintptr_t stopped_pc = 0, stopped_sp = 0;
    // Does it go on for long after it woke another? When the wake-up that is being timed was, or 0; how many until the next one that is;
    // how many times in a row it did, 2 at most.
    uint64_t woke_at = 0;
    uint32_t calls = 0;  // of take_turns()
    uint8_t until_timed = 0, went_on = 0;
    bool in_libc = false;  // preempted with its pc inside libc: goes in front
    uint8_t blocked = 0;   // times that its worker lost the slot to a blocking call

    void reset() {
      preempted.store(0, std::memory_order_relaxed);
      woke_at = 0;
      until_timed = went_on = blocked = 0;
      in_libc = false;
    }
  } turns;

  struct Identity {
    bool is_main = false;  // fiber 0
    uint32_t id = 0;       // the virtual tid of a fiber
    uint32_t serial = 0;   // tells the fibers apart that have had this record, one after the other
    char name[16] = {};
    void* (*start)(void*) = nullptr;
    void* arg = nullptr;
    void* result = nullptr;
    void* entry = nullptr;  // sched_prepare()
  } identity;

  // See memory/block.h. A block is kept with its record as long as both live, so there is no reset.
  struct Memory {
    char* block = nullptr;  // lowest address, of the guard
    size_t block_size = 0;
    void* tcb = nullptr;        // the thread control block: libc's handle of the thread
    char* stack_low = nullptr;  // usable bounds of the stack in use (the user's own, if one was given)
    char* stack_high = nullptr;
    stack_t alternate{};  // for signal handlers, as the program set it; no size: none
    size_t guard_size = 0;
    uint16_t chunk = 0;  // that the block is in
    bool user_stack = false;
  } memory;

  struct Wait {
    ParkReason reason{};
    uint64_t since = 0;                         // recent_ns() when it last parked
    std::atomic<CallWait*> called_by{nullptr};  // the caller, which runs on when this one first waits, yields or ends; see sched_call()
    std::atomic<uint32_t> kernel_word{0};       // futex of a kernel thread's park
    uint32_t pins = 0;                          // waits by which others may find its stack: it must not be unwound out of them
    uint32_t pins_below = 0;                    // those that the program's innermost handler has interrupted
    uint32_t clock_seen = 0;                    // clock_settings when its last deadline with kFollowsRealtime was computed; 0: never
    bool calling = false;                       // it is in sched_call(): its waits there do not end a call of itself

    void reset() {
      pins = pins_below = clock_seen = 0;
      calling = false;
    }
    void in_child() {  // its caller is the parent's
      called_by.store(nullptr);
      calling = false;
    }
  } wait;

  // CPU time, see accounting.h.
  struct Cpu {
    std::atomic<uint64_t> given{0};
    std::atomic<uint64_t> told{0};  // the most that another was told of it

    void reset() {
      given.store(0, std::memory_order_relaxed);
      told.store(0, std::memory_order_relaxed);
    }
    void in_child() { told.store(0); }
  } cpu;

  // See life/join.h, whose protocol this is.
  struct Join {
    SpinLock lock;
    std::atomic<uint32_t> done{0};
    std::atomic<bool> valid{false};  // its handle may be used: born, and neither joined nor ended detached
    bool detached = false;
    FiberRecord* joiner = nullptr;  // set under its own lock and that of the joiner, which has just looked at its own
    // If its kernel thread has something to give up that only its end gives up: that one and its tid. Join waits for it.
    Worker* leaves_with = nullptr;
    uint32_t leaves_tid = 0;

    void reset() {
      done.store(0, std::memory_order_release);
      __atomic_store_n(&joiner, nullptr, __ATOMIC_RELEASE);
      leaves_with = nullptr;
    }
    void in_child() {  // a joiner waits in the parent
      lock.reset();
      joiner = nullptr;
    }
  } join;

  // Why its waits shall end. Under join.lock.
  struct Ends {
    bool asked = false;    // by end_waits_of()
    bool held = false;     // kInterruptEnd stays clear for now
    uint32_t reasons = 0;  // how many reasons there are to set it

    void reset() {
      asked = held = false;
      reasons = 0;
    }
  } ends;

  // The share of the trace: sched/observe looks inside while there is one.
  struct Traced {
    uint64_t left_at = 0;  // cycles() when it last left a worker
    uint32_t wait = 0;     // the word for what it waits for, if the trace lacks the end of that
  } traced;

  // The share of the layer that gives out handles of fibers: shim/fibers.
  struct Handle {
    std::atomic<uint32_t> woken{0};  // serial + 1: it has a wake-up that no yield has taken yet
    std::atomic<uint32_t> fresh{0};  // 0, kFresh, kClaimed or kDiscarded

    void reset() { fresh.store(0, std::memory_order_relaxed); }
  } handle;

  // The share of the embedder, zero at first. `sched` does not look inside.
  struct Share {
    alignas(16) unsigned char room[192] = {};

    void reset() { __builtin_memset(room, 0, sizeof room); }
  } embedder;

  // For the next fiber or kernel thread, which `serial` tells from those before. The caller alone has the record.
  void reset(uint32_t serial) {
    identity.serial = serial;  // first: who holds an old handle looks at this last
    join.reset();
    run.reset();
    turns.reset();
    wait.reset();
    cpu.reset();
    ends.reset();
    handle.reset();
    embedder.reset();
  }
  // Of the fiber that has forked, which is the child's main.
  void in_child() {
    identity.is_main = true;
    run.in_child();
    wait.in_child();
    cpu.in_child();
    join.in_child();
  }
};

// The fiber whose thread-local storage this is. Null in worker context and in foreign threads not yet seen. A plain
// initial-exec variable is right under migration, as TLS belongs to the fiber.
extern thread_local constinit FiberRecord* tls_current __attribute__((tls_model("initial-exec")));
// > 0: neither preemption nor a program's asynchronous signal handler may come in here (see Busy).
extern thread_local constinit uint32_t tls_busy __attribute__((tls_model("initial-exec")));
// > 0 from a fiber's vfork() until the child has gone: what runs on its stack and TLS is the child then, another process, which waits
// in the kernel only and leaves the scheduler alone. How deep, as the child may vfork too.
extern thread_local constinit uint32_t tls_vforked __attribute__((tls_model("initial-exec")));

FiberRecord* adopt_kernel_thread();  // makes the record of a foreign thread

// The caller's record, made on demand for a foreign thread. Not in worker context. Never parks.
inline FiberRecord* self() {
  FiberRecord* f = tls_current;
  return __builtin_expect(f != nullptr, 1) ? f : adopt_kernel_thread();
}

void leave_busy_slow();  // calls Embedder::at_safe_point()
void wait_over_slow(FiberRecord* me);

// A stretch in which the fiber stays on its worker and no handler of the program runs on it: needed around every use
// of FiberRecord::run.worker, of a SpinLock and of scheduler state. Nests. Parking inside is fine (the count is the fiber's
// own). A signal or a preemption that comes meanwhile is recorded and acted upon when the outermost one ends.
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

// Is the caller in a wait by which others may find its stack, and not in a handler on top of it? As under Busy, no handler of the program
// may begin here, since it might never return. One that is recorded runs in park_if(), which can be left, or when the wait is over.
inline bool in_wait(const FiberRecord* me) { return me->wait.pins > me->wait.pins_below; }

// No other wait of the caller's lies below the one that it is in, unless in between is a handler that can be left.
inline bool is_only_wait(const FiberRecord* me) { return me->wait.pins == me->wait.pins_below + 1; }

// The end of what began with queued++. By the fiber itself. What was put off meanwhile follows: handlers, and its end.
inline void wait_over(FiberRecord* me) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  me->wait.pins--;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  uint32_t pending = me->run.interrupts.load(std::memory_order_relaxed);
  if (__builtin_expect(pending & (kInterruptSafePoint | kInterruptUnwind | kInterruptLeave), 0)) wait_over_slow(me);
}

// CLOCK_MONOTONIC in nanoseconds, the clock of all deadlines here.
uint64_t now_ns();

// Times that CLOCK_REALTIME was set, plus one.
extern std::atomic<uint32_t> clock_settings;

inline bool passed(const FiberRecord* me, uint64_t deadline) {
  if (deadline == kNever) return false;
  // Acquire: who sees the new count sees the new time.
  if (deadline & kFollowsRealtime && me->wait.clock_seen && me->wait.clock_seen != clock_settings.load(std::memory_order_acquire))
    return true;
  return now_ns() >= deadline;
}

// Waits until *flag != expected, an unpark, an interrupt, or `deadline_ns` (absolute, now_ns()'s clock; kNever: none).
// May return for no reason: call it in a loop. Returns false if the deadline has passed. The caller must not hold a
// SpinLock. `flag` is read before the fiber leaves its stack; who changes it must unpark afterwards: an unpark that comes
// before the fiber is PARKED sets the latch, which is looked at once it is.
bool park_if(const std::atomic<uint32_t>* flag, uint32_t expected, const ParkReason& reason, uint64_t deadline_ns = kNever);

// Makes `f` runnable, or latches that for its next park. Never blocks, never runs `f`. Any thread, any context.
void unpark(FiberRecord* f);

// Forgets an unpark that came for an earlier wait. Only by the fiber itself, before it publishes a new wait and before it
// looks at its interrupts.
inline void clear_pending_unpark(FiberRecord* self) {
  if (self->run.pending_unpark.load(std::memory_order_relaxed)) self->run.pending_unpark.exchange(0, std::memory_order_seq_cst);
}

// Sets interrupt bits and makes sure that `f` sees them: unparks it.
void interrupt(FiberRecord* f, uint32_t bits);

// kInterruptEnd is set as long as there is a reason for it and it is not held back. f lives.
void add_end_reason(FiberRecord* f);
void drop_end_reason(FiberRecord* me);
// Adds one, once in the fiber's life. False, and nothing happens, unless f lives: lives(f, data) is asked under join.lock, so that the
// answer holds.
bool end_waits_of(FiberRecord* f, bool (*lives)(FiberRecord* f, const void* data), const void* data);
bool hold_end(FiberRecord* me, bool hold);  // returns what it was

// True if the caller parks where it waits: a fiber on its own stack, with no kernel thread of its own. False for kernel threads,
// bound fibers, children of a vfork, and handlers on the signal stack, which may as well wait in the kernel.
bool may_park();

// A hint: others wait for the caller's worker, so that to spin is to keep them from what one spins for.
bool keeps_others_waiting();

// Lets others run. A fiber goes to the end of the queue, and learns whether others were there to run instead; a kernel thread calls
// the kernel's sched_yield.
bool yield();

// At the beginning of each call that waits for data. Who finds some every time never waits, is stopped at the kernel's ticks only, and
// nobody looks at the poller meanwhile but sysmon: so once it has run for a while it looks for the others, and gives way to them.
void end_turn();
inline void take_turns() {
  FiberRecord* me = tls_current;
  if (__builtin_expect(me && !(++me->turns.calls % 8), 0)) end_turn();
}

// Around a call that is `likely` to sleep in the kernel. If others wait, they have the slot at once, and not when sysmon has
// found out. May be left by unwinding, without its end. Not under Busy. Such calls again and again bind the fiber to its kernel
// thread, unless they are `short_ones`.
class Blocking {
 public:
  explicit Blocking(bool likely = true, bool short_ones = false) {
    if (likely) begin(short_ones);
  }
  ~Blocking() { end(); }
  Blocking(const Blocking&) = delete;

  // For calls that return in another function than they are made in.
  static void begin(bool short_ones = false);
  static void end();
};

}  // namespace fiberthread
