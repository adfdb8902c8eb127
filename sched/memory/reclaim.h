// SPDX-License-Identifier: MIT
// How the reaper takes free blocks and gives their memory back. Only the reaper's thread calls these functions, unless they say otherwise.
#pragma once
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// Free blocks of one extent, taken by the reaper. Bit i stands for block i.
struct FreeGroup {
  uint32_t extent;
  uint64_t blocks;
};
// Takes free blocks beyond the number that keeps its memory, in at most `room` groups. With `tick`, it also takes blocks that no fiber has
// wanted since the last tick. With `all`, it takes all free blocks. Returns the number of groups.
unsigned block_take_idle(FreeGroup* to, unsigned room, bool tick, bool all);
FiberRecord* block_of(const FreeGroup& idle, unsigned i);
void block_keep(FreeGroup& idle, unsigned i);  // takes block i out of the group; it is free as before
// Gives back the memory of all blocks in these groups. Their TCBs are gone.
void block_empty(const FreeGroup* idle, unsigned count);
// Returns true if some class has more free blocks than the number that keeps its memory for ever.
bool block_any_idle();
// Returns true if there are free blocks that the workers do not keep to themselves. For any thread.
bool block_any_free();
// Gives back the address space of all chunks whose blocks nobody uses, in the child of a fork those of the parent's threads too. Returns
// false if there are none. For any thread, Busy.
bool block_unmap_idle();

}  // namespace fiberthread
