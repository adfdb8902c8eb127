// SPDX-License-Identifier: MIT
// The reaper is a thread that gives back the memory of free blocks. It takes the blocks beyond a bound at once. At each tick it also takes
// half of the blocks that no fiber has wanted since the last tick.
//
// A block's TLS may own what libc gave its threads (a malloc cache, a reference to an arena, resolver state). libc frees that only when a
// thread exits, by code that it does not export. So a block that was used is adopted: a thread made by libc itself takes the block's thread
// pointer as its own and exits, and libc frees what it finds there. A block whose libc TLS is still as at birth is not adopted.
#pragma once
#include "sched/fiber.h"

namespace fiberthread {

// Tells the reaper that there are free blocks to give back, and when to look. Any context.
enum class Reap { AtTick, AtOnce };
void reaper_wake(Reap when);

// Starts the reaper's thread, unless it runs. Called by a native thread or a fiber, not Busy, because it takes locks of libc.
void reaper_start_if_needed();

// Gives back the memory and the address space of all free blocks, for a caller that the kernel has refused a chunk. Returns false if there
// are none, or if that takes longer than five seconds. Waits, by a system call. Called by a native thread or a fiber, not Busy.
bool reaper_make_room();

bool reaper_running();

}  // namespace fiberthread
