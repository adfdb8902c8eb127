// Blocks: the memory of fibers. A block is, from high to low address,
//
//     | TCB | static TLS | stack, grows down … | guard |
//
// one of many of the same stride in a chunk that is reserved at once. Its Fiber record stands in an array beside the
// chunk, lives as long as the process, and stays with its block, so that a recycled fiber keeps its TCB and TLS.
#pragma once
#include <cstddef>

#include "sched/fiber.h"

namespace fiberthread {

// A fiber with room for `stack_size` bytes, its guard of `guard_size` bytes included as in NPTL. With `user_stack` not
// null, the fiber runs on those stack_size bytes and only its TCB and TLS are in the block. Null without memory.
// Native thread or fiber, Busy; may take libc locks, so never in worker context. Does not park.
Fiber* block_get(size_t stack_size, size_t guard_size, void* user_stack);

// Gives back a fiber that is DONE and off its stack. Worker context too.
void block_put(Fiber* f);

// From the reaper: a block that stays as it is, and one without TCB, whose memory goes back.
void block_keep(Fiber* f);
void block_unborn(Fiber* f);

// The fiber whose pthread_t is `handle`, or null if that is none of ours. It may be one that ended. Signal-safe.
Fiber* block_find(const void* handle);

// Calls visit(f) for every record ever born, until it returns false.
void block_each(bool (*visit)(Fiber*, void*), void* data);

// Maps memory for workers: never fails softly into malloc; null without memory.
char* map_stack(size_t size, size_t guard);

// True once a loaded object wants executable stacks (PT_GNU_STACK); blocks made from then on are.
void stack_look_at_objects();

void block_lock_for_fork();
void block_unlock_after_fork(bool child, Fiber* survivor);

}  // namespace fiberthread
