// SPDX-License-Identifier: MIT
// What the scheduler asks of the layer that it is built into. POSIX is one such layer (shim/embed.cpp); `sched` and `sync` know none.
//
// An embedder keeps its own state of each fiber in FiberRecord::embedder. It asks for attention by bits of FiberRecord::run.interrupts:
// kInterruptSafePoint brings the fiber to at_safe_point(), kInterruptUnwind makes waits ask end_requested().
#pragma once
#include <csignal>
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// Each function has a default, for embedders that have no use for it: it does nothing, and says no.
struct Embedder {
  // Called when `me`, the caller, has kInterruptSafePoint set and leaves Busy, or a wait ends: on its own stack, not Busy. Clears the bit,
  // and may run any code: it may wait, switch, unwind the stack or jump out of it. Calls for which there is nothing to do must be harmless.
  void (*at_safe_point)(FiberRecord* me) = [](FiberRecord* me) {
    me->run.interrupts.fetch_and(~uint32_t{kInterruptSafePoint}, std::memory_order_relaxed);
  };

  // Is `me`, the caller, to end at once, wherever it is? Asked in waits and at their end, under Busy or not. Only looks: it neither waits
  // nor locks.
  bool (*end_requested)(FiberRecord* me) = [](FiberRecord*) { return false; };
  // The same, where `me` was stopped at the code address `pc`. Asked in the handler of preemption's signal, and when a preempted fiber
  // runs again. It must say no while `me` is in a wait (in_wait()). Async-signal-safe.
  bool (*end_requested_at)(FiberRecord* me, uintptr_t pc) = [](FiberRecord*, uintptr_t) { return false; };
  // Ends the caller after one of these said yes: on its own stack, not Busy, in no wait by which others may find that stack. Does not
  // return: it unwinds. Also the target of inject_call().
  void (*end_now)() = [] {};

  // Called in the handler of kPreemptSignal when somebody else has sent it to this kernel thread, a worker or not: on the alternate stack,
  // all signals blocked, on top of any instruction. May call inject_call(). Async-signal-safe; errno is kept for it.
  void (*poked)(siginfo_t* info, void* ucontext) = [](siginfo_t*, void*) {};
  // Must a fiber not be stopped at `pc`, as that is code of the embedder's which preemption would break? Asked in the same handler.
  bool (*must_not_stop_at)(uintptr_t pc) = [](uintptr_t) { return false; };
  // AArch64 only, and there is no preemption there without it (arch/aarch64/inject.cpp). Called in the same handler, where the stack has room for what the kernel has
  // saved: makes the kernel return into fn() on the stack of the interrupted fiber, and from fn() to where that was.
  void (*inject)(void* ucontext, void (*fn)()) = nullptr;

  // A kernel thread that is none of ours has just got its record: on that thread, Busy. May set the record's interrupts and room.
  void (*thread_adopted)(FiberRecord* f) = [](FiberRecord*) {};
  // Such a thread ends: on that thread, Busy, before anybody who waits for it is told.
  void (*thread_ends)(FiberRecord* f) = [](FiberRecord*) {};
  // After that, if nobody will join it (`detached`), just before its record is given back. Busy; the thread has no record any more, and
  // what is called here must not want one.
  void (*thread_unjoined)(FiberRecord* f) = [](FiberRecord*) {};

  // Called on sysmon, soon after a sysmon_call(). Runs no code of the program, and takes no lock of libc's.
  void (*on_sysmon)() = [] {};
};

// Installs the table, which stays as it is from then on. Once, at the start of the process: before the first fiber and before any other
// thread uses this library. Without it the defaults stand.
void sched_embed(const Embedder& table);

namespace inside {
extern Embedder embedder;
}
inline const Embedder& embedder() { return inside::embedder; }

// For the loop of a wait that `me`, the caller, is in, with its `pending` interrupts: is it to end now? Not under Busy, and not if another
// wait of the caller's lies below on this stack. Then the wait takes itself out, calls wait_over() and embedder().end_now().
inline bool ends_in_wait(FiberRecord* me, uint32_t pending) {
  return pending & kInterruptUnwind && tls_busy == 0 && is_only_wait(me) && embedder().end_requested(me);
}

}  // namespace fiberthread
