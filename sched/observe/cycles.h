// SPDX-License-Identifier: MIT
// The watch for deadlocks of some fibers while others go on.
#pragma once
#include <cstdint>

namespace fiberthread {

// Looks at some of the fibers, if it is time. Called by sysmon at each look. Returns when it wants to be called next; kNever: nothing has run
// since it last looked at all of them.
uint64_t cycles_look(uint64_t now);

// What it has seen of all fibers in its last round.
struct WatchFindings {
  uint64_t oldest_wait = ~uint64_t{0};  // when the parked fiber began to wait that has waited longest
  uint64_t stack_bytes = 0;
  uint64_t resident_bytes = 0;  // of these, in memory: estimated from a sample, and only while metrics are wanted
};
WatchFindings watch_findings();
uint64_t deadlocks();  // found in this process; the verdict of deadlock.h counts as one

}  // namespace fiberthread
