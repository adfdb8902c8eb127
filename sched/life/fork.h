// SPDX-License-Identifier: MIT
// The state that each part of the library resets in the child of a fork, and the order of these resets.
//
// A part has its reset beside the state:
//
//     FIBERTHREAD_IN_FORK_CHILD(Poller, poller, [](FiberRecord*) { … })
//
// The first name is the step, and the second one is the part's own.
// The caller, `me`, is the child's only thread, and under Busy. All locks are made anew, because their owners stayed in the parent.
#pragma once
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// The resets run in this order, those of one step in any order. First come the things that fibers wait for, while the scheduler's records
// are still the parent's. Then come the embedder's parts, and then the scheduler's own. The blocks come last, because they hold the
// records.
enum class ForkStep : uint32_t {
  Waits,
  Embedder,
  EmbeddersThreads,  // what the embedder has only if there are threads
  Foreign,
  Slots,
  Cords,
  Workers,
  Counts,
  Observers,
  Sysmon,
  Preemption,
  Poller,
  Descriptors,
  Libc,
  Start,   // the scheduler becomes one that has not been started
  Caller,  // the caller becomes the child's main, on the only kernel thread
  Reaper,
  Blocks,
};

struct ForkReset {
  ForkStep step;
  void (*reset)(FiberRecord* me);
};

// The linker collects the table in this section. With constructors, a fork could come before one has run.
#define FIBERTHREAD_IN_FORK_CHILD(step, name, ...) \
  [[gnu::section("fiberthread_fork"), gnu::used]] constinit const ForkReset fork_reset_of_##name{ForkStep::step, __VA_ARGS__};

// Runs all resets, in the child. Async-signal-safe, as fork is.
void sched_reset_after_fork(FiberRecord* me);

}  // namespace fiberthread
