// SPDX-License-Identifier: MIT
// Gives back the memory of blocks that nobody needs any more: at once those beyond a bound, and of the others, at each tick,
// half of those that nobody wanted since the last one.
//
// A block's TLS may own what libc gave its threads (a malloc cache, a reference to an arena, resolver state). libc frees
// that only when a thread exits, by code that it does not export. So a block that was used is adopted: a thread made by
// libc itself takes the block's thread pointer as its own and exits, and libc cleans what it finds there.
// A block whose libc TLS is still as at birth needs none of it.
#pragma once
#include "sched/fiber.h"

namespace fiberthread {

// There are free blocks that may go: a look at them within a tick, or at once. Any context.
void reaper_poke(bool at_once);

// Starts the reaper's thread. Native thread or fiber, not Busy: takes libc locks.
void reaper_start_if_needed();

bool reaper_running();
void reaper_reset_after_fork();

}  // namespace fiberthread
