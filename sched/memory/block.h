// SPDX-License-Identifier: MIT
// Blocks: the memory of fibers. A block is, from high to low address,
//
//     | TCB | static TLS | stack, grows down … | guard | unused |
//
// and one of many of the same stride in a chunk. TCB, static TLS and stack have the size that the fiber's stack has on NPTL, so the guard
// is where NPTL has it. A chunk is reserved at once. The block's FiberRecord stands in an array beside the chunk, and is readable as long
// as the process lives. It stays with its block, so a recycled fiber keeps its TCB and TLS.
#pragma once
#include <cstddef>

#include "sched/fiber.h"

namespace fiberthread {

// Returns the record of a fiber with a stack of `stack_size` bytes, which include its TCB and TLS, and at least tcb_least_stack(). Below
// come at least `guard_size` bytes of guard. If `user_stack` is not null, the fiber runs on those stack_size bytes, and only its TCB and
// TLS are in the block. Returns null without memory. Called by a native thread or a fiber, Busy. It may take locks of libc, so it is never
// called in worker context. Does not park.
FiberRecord* block_get(size_t stack_size, size_t guard_size, void* user_stack);

// Populates some blocks if many new ones are being taken: a worker that finds no work calls it, because a new page costs far more than all
// else of a fiber's birth. Worker context. Returns false if there is nothing to do, or if the kernel has refused a page.
bool block_populate();

// True once the reaper must be started, which gives free blocks back: many have been used, or address space is limited.
extern std::atomic<bool> many_blocks __attribute__((visibility("hidden")));
inline bool blocks_are_many() { return many_blocks.load(std::memory_order_relaxed); }

// Called before the scheduler starts. In the child of a fork without address space for that, gives back what the parent's threads had.
void block_before_start();

// Gives back a fiber that is Done and off its stack. Worker context too.
void block_put(FiberRecord* f);
// Gives the blocks that `w` keeps to itself to all workers. `w` calls it, Busy or in worker context.
void block_put_kept(struct Worker* w);

// Returns the fiber whose TCB is `handle`, libc's handle of a thread, or null if no fiber has that TCB. The fiber may have ended.
// Async-signal-safe.
FiberRecord* block_find(const void* handle);
// Returns true if a fiber's record is at this address, or was, or will be. It can be read then. Async-signal-safe.
bool block_has_record(const void* p);

// Calls visit(f, data) for every record that has a TCB, until visit() returns false.
void block_each(bool (*visit)(FiberRecord*, void*), void* data);
// A place among the records, which begins as {}.
struct BlockPlace {
  uint32_t chunk = 0, extent = 0;
};
// Calls visit(f) for the records at that place, which are at most 64, and moves on to the next. Returns false after the last.
bool block_each_at(BlockPlace& place, void (*visit)(FiberRecord*));

// Maps memory for a worker, whose lowest `guard` bytes nobody can access. Never calls malloc. Returns null without memory.
char* map_stack(size_t size, size_t guard);

// Looks whether a loaded object wants executable stacks (PT_GNU_STACK). If one does, all blocks are executable from then on, those in use
// too. Takes the loader's lock: not in worker context.
void stack_look_at_objects();
// Called when the kernel begins to keep all new memory in RAM. `how` is mlock2()'s flags for that. Negative: it no longer does. Returns how it was
// before.
int memory_lock_new(int how);

}  // namespace fiberthread
