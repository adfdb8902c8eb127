// SPDX-License-Identifier: MIT
// The reaper's thread gives back the memory of free blocks by these.
#pragma once
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// Up to 64 free blocks that stand side by side, by bits.
struct Idle {
  uint32_t extent;
  uint64_t blocks;
};
// Takes free blocks beyond what shall stay, at most `room` such groups of them; with `tick`, also of those that nobody wanted
// since the last one.
unsigned block_take_idle(Idle* to, unsigned room, bool tick);
FiberRecord* block_of(const Idle& idle, unsigned i);
void block_keep(Idle& idle, unsigned i);  // free as before
// Of the others the TCB is gone; this gives their memory back.
void block_empty(const Idle* idle, unsigned count);
// True if there are more free blocks than what stays for ever.
bool block_any_idle();

}  // namespace fiberthread
