// SPDX-License-Identifier: MIT
// Join: waiting for a fiber's end, and giving its record back.
//
// The protocol (tests/models/join.pml). `done`, `joiner` and `detached` change under FiberRecord::join.lock, and so does `valid` once there
// is a joiner or the fiber is detached. So exactly one thread gives the record back: the ending fiber, its joiner or its detacher,
// whichever is last. A joiner registers, waits for `done`, and then waits until the lock is free: from then on the fiber's end does not
// touch the record any more. A joiner that gives up withdraws under the lock, unless the fiber has ended. The end sets `done`, and looks
// for a joiner, under the lock.
//
// The same lock keeps two other things from a fiber that has ended: binding it (sched_bind), and asking it to end its waits
// (end_reasons.cpp).
//
// Lock order: join locks before those of the slots' queues. Two join locks are taken in the order of their addresses (SpinPairGuard).
#pragma once
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// Returns true if `handle` still names the fiber that had it, in this record. Called under join.lock, after `done`, `joiner` and `detached`
// were read. A later fiber of the same record writes these after the serial, so values of the later fiber are noticed. Null: the caller
// knows that the handle names the fiber.
struct StillNamed {
  bool (*ask)(FiberRecord* f, const void* handle) = nullptr;
  const void* handle = nullptr;
  bool operator()(FiberRecord* f) const { return !ask || ask(f, handle); }
};

// Makes the caller, `me`, f's only joiner, and begins a wait, which wait_over() ends. Returns 0, ESRCH (not named any more), EINVAL
// (detached, or another joins it) or EDEADLK (f is `me`, or joins `me` and has not been asked to end). Does not park.
int join_register(FiberRecord* me, FiberRecord* f, StillNamed named = {});
// Withdraws the caller as f's joiner. Returns false, and changes nothing, if f has ended.
bool join_withdraw(FiberRecord* f);
// Waits, as the registered joiner, until f has ended. Then takes its result, and gives the record back if it has a block. Returns false at
// the deadline, or when an interrupt in `interrupt_mask` is set; the caller is not the joiner then. In either case the caller still has to
// call wait_over(). Parks.
bool join_wait(FiberRecord* f, void** result, uint64_t deadline_ns, uint32_t interrupt_mask);

// The result of join_set_detached().
enum class Detached {
  Now,        // the fiber lives, and is now as the caller asked
  Ended,      // it had ended: the caller must give the record back
  Gone,       // not named any more, or ended and detached
  Before,     // it was so before
  HasJoiner,  // a thread waits for it, and nothing was changed
};
// Detaches f, so that no thread will join it, or makes it joinable again. Does not park.
Detached join_set_detached(FiberRecord* f, bool detached, StillNamed named = {});

// Ends f, a fiber off its stack or a kernel thread on its way out: f is done from here on. Under Busy.
struct Ending {
  FiberRecord* joiner;  // the caller must wake it
  bool detached;        // the caller must give the record back
  Worker* bound;        // its own worker, until now
};
Ending join_end(FiberRecord* f);
// Returns the joiner of `me`, made Queued, if it can run next; otherwise null. That saves the way through worker context. The joiner is
// woken before there is a reason, which is allowed, and join_end() gives the reason before it runs. If the joiner has given up meanwhile,
// or runs elsewhere, this is a spurious wake-up.
FiberRecord* join_choose_next(FiberRecord* me);

// Runs call() under f's join lock, so that f does not end meanwhile. For what must come before a fiber's end: reasons to end its waits, its
// binding to a worker, its start by a handle. call() only reads and writes some words.
template <class Call>
auto join_locked(FiberRecord* f, Call call) {
  Busy busy;
  SpinGuard guard(f->join.lock);
  return call();
}

}  // namespace fiberthread
