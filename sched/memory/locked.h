// SPDX-License-Identifier: MIT
// Stacks of a program that keeps its memory in RAM, by mlockall(). From then on the kernel fills each new mapping, which for a chunk would be the
// stacks of 64 threads and more. So chunks are mapped without that, and each block gets it at its birth, as a stack of NPTL's does.
#pragma once
#include <cstddef>

#include "sched/fiber.h"

namespace fiberthread::memory {

// Maps private memory that is in RAM only once it is used. Null without memory.
char* map_unlocked(size_t size, int protection, int more_flags);
// Has the kernel keep the block's stack and TCB in RAM, if it is to do that with new memory. Returns false if it refuses.
bool lock_block(FiberRecord& f, char* low, char* high);
// Lets the kernel take these pages out of RAM again.
void unlock(char* low, char* high);
bool locks_new();  // returns true if the kernel keeps all new memory in RAM

}  // namespace fiberthread::memory
