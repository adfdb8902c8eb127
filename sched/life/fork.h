// SPDX-License-Identifier: MIT
// What each part of the library forgets in the child of a fork, and in which order.
//
// A part says so beside what it resets:
//
//     FIBERTHREAD_IN_FORK_CHILD(Poller, [](FiberRecord*) { … })
//
// The caller, `me`, is the child's only thread, and Busy. All locks are made anew: their owners stayed in the parent.
#pragma once
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// In this order. First what fibers wait for, while the scheduler's records are still the parent's; then the embedder's parts; then the
// scheduler's own, those that others look up last.
enum class ForkStep : uint32_t {
  ParkingLot,
  JobQueues,
  Channels,
  Signals,
  Libgomp,
  Connect,
  Blocking,
  Ids,
  Threads,
  Cancel,
  Foreign,
  Slots,
  Cords,
  Workers,
  Counts,
  Trace,
  Sysmon,
  Poller,
  Descriptors,
  Libc,
  Start,   // the scheduler has not been started
  Caller,  // is the new process's main, on the one kernel thread that there is
  Blocks,
};

struct ForkReset {
  ForkStep step;
  void (*reset)(FiberRecord* me);
};

// The table is what the linker collects in this section: a constructor could not be there before the first fork.
#define FIBERTHREAD_IN_FORK_CHILD(name, ...) \
  [[gnu::section("fiberthread_fork"), gnu::used]] constinit const ForkReset fork_reset_##name{ForkStep::name, __VA_ARGS__};

// In the child: all of them. Async-signal-safe, as fork is.
void sched_reset_after_fork(FiberRecord* me);

}  // namespace fiberthread
