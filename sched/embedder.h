// SPDX-License-Identifier: MIT
// The functions that the scheduler calls in the layer that it is built into. shim/embed.cpp supplies them for POSIX; `sched` and `sync`
// know no such layer.
//
// An embedder keeps its own state of each fiber in FiberRecord::embedder. It asks for attention by bits of FiberRecord::run.interrupts.
// kInterruptSafePoint brings the fiber to at_safe_point(), and kInterruptUnwind makes waits call end_requested().
#pragma once
#include <csignal>
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// Each function but inject() has a default, for embedders that have no use for it. The default does nothing, and answers no.
struct Embedder {
  // Called once it is known that fibers can run here, before the first of them does: on the thread that starts the scheduler, under Busy,
  // with all signals blocked.
  void (*before_start)() = [] {};

  // Called when `me`, the caller, leaves Busy or a wait with kInterruptSafePoint set: on its own stack, not under Busy. Clears the bit, and
  // may run any code: it may wait, switch, unwind the stack or jump out of it. Calls for which there is nothing to do must be harmless.
  void (*at_safe_point)(FiberRecord* me) = [](FiberRecord* me) {
    me->run.interrupts.fetch_and(~uint32_t{kInterruptSafePoint}, std::memory_order_relaxed);
  };

  // Returns true if `me`, the caller, must end at once, wherever it is. Called in waits and at their end, under Busy or not. Neither waits
  // nor locks.
  bool (*end_requested)(FiberRecord* me) = [](FiberRecord*) { return false; };
  // Returns the same for a `me` that was stopped at the code address `pc`. Called in the handler of preemption's signal, and when a
  // preempted fiber runs again. Must return false while `me` is in a wait (in_wait()). Async-signal-safe.
  bool (*end_requested_at)(FiberRecord* me, uintptr_t pc) = [](FiberRecord*, uintptr_t) { return false; };
  // Ends the caller after one of these has returned true: on its own stack, not under Busy, in no wait by which others may find that stack.
  // Does not return, but unwinds. Also the target of inject_call().
  void (*end_now)() = [] {};

  // Called in the handler of kPreemptSignal when other code has sent it to this kernel thread, which may be a worker or not. Runs on the
  // alternate stack, with all signals blocked, on top of any instruction. May call inject_call(). Async-signal-safe; the caller keeps
  // errno.
  void (*poked)(siginfo_t* info, void* ucontext) = [](siginfo_t*, void*) {};
  // Returns true if a fiber must not be stopped at `pc`, because preemption would break this code of the embedder. Called in the same
  // handler.
  bool (*must_not_stop_at)(uintptr_t pc) = [](uintptr_t) { return false; };
  // Called in the same handler at a tick. Timers of CPU time expire at the same ticks. The kernel gives such a timer's signal to another thread,
  // or delivers it where the fiber gives way, unless this function takes it first. Returns its number, or 0 if there is none for the
  // interrupted fiber. deliver() is then called with it before the handler returns, and may make the fiber go on elsewhere.
  int (*take_at_tick)(siginfo_t* info, const void* ucontext) = [](siginfo_t*, const void*) { return 0; };
  void (*deliver)(int sig, siginfo_t* info, void* ucontext) = [](int, siginfo_t*, void*) {};
  // AArch64 only, where there is no preemption without it (arch/aarch64/inject.cpp). Makes the kernel return into fn() on the stack of the
  // interrupted fiber, and from fn() to the interrupted place. Called in the same handler, if that stack has room for what the kernel has
  // saved.
  void (*inject)(void* ucontext, void (*fn)()) = nullptr;

  // Called when a foreign thread has just got its record: on that thread, under Busy. May set the record's interrupts and room.
  void (*thread_adopted)(FiberRecord* f) = [](FiberRecord*) {};
  // Called when such a thread ends: on that thread, under Busy, before its joiner is woken.
  void (*thread_ends)(FiberRecord* f) = [](FiberRecord*) {};
  // Called after that if no thread will join it (`detached`), just before its record is given back. Under Busy. The thread has no record
  // any more, and the function must not need one.
  void (*thread_unjoined)(FiberRecord* f) = [](FiberRecord*) {};

  // Returns the mask that the kernel thread of f, a bound fiber, has while f is parked there: what f blocks, but not the signals that it
  // waits for and that the kernel calls the embedder for. Called in worker context. Async-signal-safe.
  uint64_t (*refused_by)(FiberRecord* f) = [](FiberRecord* f) { return f->run.sigmask; };

  // Called on sysmon, soon after a sysmon_call(). Runs no code of the program, and takes no lock of libc.
  void (*on_sysmon)() = [] {};
  // Called on sysmon. Returns true if a timer of the program's will send a signal.
  bool (*timers_set)() = [] { return false; };
};

// Installs the table, which does not change afterwards. Called once, at the start of the process, before the first fiber and before any
// other thread uses this library. Without this call the defaults hold.
void sched_embed(const Embedder& table);

namespace inside {
extern Embedder embedder;
}
inline const Embedder& embedder() { return inside::embedder; }

// Returns true if `me`, the caller, must end now, out of the wait that it is in and with these `pending` interrupts. False under Busy, and
// if another wait of the caller lies below on this stack. After true, the wait takes itself out, and calls wait_over() and
// embedder().end_now().
inline bool ends_in_wait(FiberRecord* me, uint32_t pending) {
  return pending & kInterruptUnwind && tls_busy == 0 && is_only_wait(me) && embedder().end_requested(me);
}

}  // namespace fiberthread
