// SPDX-License-Identifier: MIT
// Join: who waits for a fiber's end, and who gives its record back.
//
// The protocol (tests/models/join.pml). `done`, `joiner` and `detached` change under FiberRecord::join.lock, and so does `valid` once there
// is a joiner or the fiber is detached. So exactly one thread gives the record back: the ending fiber, its joiner or its detacher,
// whichever is last. A joiner registers, waits for `done`, and then waits until the lock is free: from then on the fiber's end does not
// touch the record any more. A joiner that gives up withdraws under the lock, unless the fiber has ended. The end sets `done`, and looks
// for a joiner, under the lock.
//
// Beside that, what must not come to a fiber that has ended happens under the same lock: binding it (sched_bind), and asking it to end
// its waits (end_reasons.cpp).
//
// Lock order: join locks before those of the slots' queues. Two join locks are taken in the order of their addresses (SpinPairGuard).
#pragma once
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// Does `handle` still name the fiber that had it, in this record? Asked under join.lock, after `done`, `joiner` and `detached` were read:
// of a later fiber with the same record these would be written after what tells the two apart. Null: the caller knows that it does.
struct StillNamed {
  bool (*ask)(FiberRecord* f, const void* handle) = nullptr;
  const void* handle = nullptr;
  bool operator()(FiberRecord* f) const { return !ask || ask(f, handle); }
};

// Makes the caller, `me`, f's only joiner, and begins a wait (wait_over() ends it). 0; ESRCH: not named any more; EINVAL: detached, or
// another joins it; EDEADLK: f waits for the end of `me`, or is that. Does not park.
int join_register(FiberRecord* me, FiberRecord* f, StillNamed named = {});
// The caller is f's joiner no more. False, and it still is, if f has ended.
bool join_withdraw(FiberRecord* f);
// Waits, as its registered joiner, until f has ended; takes its result and gives the record back, if it has a block. False at the
// deadline, or when an interrupt in `interrupt_mask` is set; the caller is no joiner then. The wait goes on: the caller ends it. Parks.
bool join_wait(FiberRecord* f, void** result, uint64_t deadline_ns, uint32_t interrupt_mask);

// What detaching has found.
enum class Detached {
  Now,        // the fiber lives, and is as it was asked for
  Ended,      // it had ended: the caller must give the record back
  Gone,       // not named any more, or ended and detached
  Before,     // it was so before
  HasJoiner,  // somebody waits for it, and nothing was changed
};
// Whether nobody will join f. Does not park.
Detached join_detach(FiberRecord* f, bool detached, StillNamed named = {});

// The end of f, a fiber off its stack or a kernel thread on its way out: from here on it is done. Under Busy.
struct Ending {
  FiberRecord* joiner;  // to be woken
  bool detached;        // the caller must give the record back
  Worker* bound;        // its own worker, until now
};
Ending join_end(FiberRecord* f);
// Who waits for the end of `me`, if it can be run next: that saves the way through worker context. It is woken before there is a reason
// for it, which is allowed, and join_end() gives the reason before it runs. Should it have given up meanwhile, or run elsewhere, it is
// a wake-up for nothing.
FiberRecord* join_choose_next(FiberRecord* me);

}  // namespace fiberthread
