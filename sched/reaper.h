// Gives back the memory of blocks that nobody needs any more.
//
// A block's TLS may own what libc gave its threads (a malloc cache, a reference to an arena, resolver state). libc frees
// that only when a thread exits, by code that it does not export. So a block that was used is adopted: a thread made by
// the real pthread_create takes the block's thread pointer as its own and exits, and libc cleans what it finds there.
// A block whose libc TLS is still as at birth needs none of it.
#pragma once
#include "sched/fiber.h"

namespace fiberthread {

// Takes fibers that are DONE, linked by queue_next; returns them to their class, unborn, when their memory is back.
// Any context.
void reaper_take(Fiber* list);

// Starts the reaper's thread if blocks wait for it. Native thread or fiber, not Busy: takes libc locks.
void reaper_start_if_needed();

void reaper_reset_after_fork();

}  // namespace fiberthread
