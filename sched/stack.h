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

// ---- for the reaper's thread ----
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

// The fiber whose TCB is `handle`, libc's handle of a thread, or null if that is none of ours. It may be one that ended. Signal-safe.
FiberRecord* block_find(const void* handle);

// Calls visit(f) for every record that has a TCB, until it returns false.
void block_each(bool (*visit)(FiberRecord*, void*), void* data);

// Maps memory for workers: never fails softly into malloc; null without memory.
char* map_stack(size_t size, size_t guard);

// True once a loaded object wants executable stacks (PT_GNU_STACK); blocks made from then on are.
void stack_look_at_objects();

// In the child of a fork.
// ---- how blocks are kept; here for those who look from outside (preload/debug_layout.cpp) ----

constexpr uint32_t kPerExtent = 64;

// Blocks side by side, whose memory goes back at once with its page tables. Bit i stands for block i; a block that is in
// neither word is in use, in Class::hot, in Worker::kept, or with the reaper. Under Class::lock.
struct Extent {
  uint64_t free;    // with TCB and memory
  uint64_t unborn;  // without
  uint64_t warm;    // of these, those with populated pages and a guard; Class::ahead counts them
  uint32_t next, prev;  // in the list that list_of() says
  bool clean;           // nothing is left in its memory: as mapped
};

// One cache line: the child of a fork takes what its `base` is set of to be whole.
struct alignas(64) Chunk {
  char* base;  // set last
  size_t stride;
  uint32_t blocks, extent_count;
  std::atomic<uint32_t> opened;  // extents that had blocks ever
  uint32_t clean;                // of these, those without any memory
  uint16_t cls;
  FiberRecord* fibers;
  Extent* extents;
};

extern Chunk chunks[];
extern std::atomic<uint32_t> chunk_count;

}  // namespace fiberthread
