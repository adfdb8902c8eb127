// SPDX-License-Identifier: MIT
// Blocks: the memory of fibers. A block is, from high to low address,
//
//     | TCB | static TLS | stack, grows down … | guard |
//
// one of many of the same stride in a chunk that is reserved at once. Its FiberRecord stands in an array beside the
// chunk, is readable as long as the process lives, and stays with its block, so that a recycled fiber keeps its TCB and TLS.
#pragma once
#include <cstddef>

#include "sched/fiber.h"

namespace fiberthread {

// A fiber with room for `stack_size` bytes, its guard of `guard_size` bytes included as in NPTL. With `user_stack` not
// null, the fiber runs on those stack_size bytes and only its TCB and TLS are in the block. Null without memory.
// Native thread or fiber, Busy; may take libc locks, so never in worker context. Does not park.
FiberRecord* block_get(size_t stack_size, size_t guard_size, void* user_stack);

// For who has nothing else to do: populates some blocks if many new ones are being taken. A new page costs far more than all else of a
// fiber's birth. Worker context. False if there is nothing to do.
bool block_populate();

// There are so many that somebody has to give free ones back: the reaper must be started.
inline bool blocks_are_many() {
  extern std::atomic<bool> many_blocks;
  return many_blocks.load(std::memory_order_relaxed);
}

// Gives back a fiber that is DONE and off its stack. Worker context too.
void block_put(FiberRecord* f);
// What `w` keeps to itself becomes everybody's. By itself, Busy or in worker context.
void block_put_kept(struct Worker* w);

// The fiber whose TCB is `handle`, libc's handle of a thread, or null if that is none of ours. It may be one that ended. Signal-safe.
FiberRecord* block_find(const void* handle);

// Calls visit(f) for every record that has a TCB, until it returns false.
void block_each(bool (*visit)(FiberRecord*, void*), void* data);

// Maps memory for workers: never fails softly into malloc; null without memory.
char* map_stack(size_t size, size_t guard);

// True once a loaded object wants executable stacks (PT_GNU_STACK); blocks made from then on are.
void stack_look_at_objects();

}  // namespace fiberthread
