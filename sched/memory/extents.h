// SPDX-License-Identifier: MIT
// How blocks are kept: each chunk of address space has extents, and each extent has 64 blocks. The rest of sched/memory uses this, and so
// does preload/debug_layout.cpp, which tells debuggers about it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/spinlock.h"

namespace fiberthread {

// The life of a block:
//
//     unborn ──block_get()──→ in use ──block_put()──→ free ──the reaper──→ unborn
//                                ↑─────block_get()──────┘
//
// A free block is kept by a worker, or is in SizeClass::hot, or has its bit in Extent::free. The reaper takes the TCBs of free blocks that lie
// side by side, and gives their pages back.
// block_get() makes the TCB of an unborn block. Ahead of a burst of births, idle workers populate the pages of unborn blocks. In the child of
// a fork, the blocks of the parent's other threads are unborn, but have pages: they are *stale*, and wiped before their birth.
constexpr uint32_t kPerExtent = 64;

// Blocks side by side, whose memory goes back at once with its page tables. Bit i stands for block i. A block that is in neither `free` nor
// `unborn` is in use, in SizeClass::hot, in Worker::kept, being populated, or with the reaper. All members change under SizeClass::lock.
struct Extent {
  uint64_t free;        // blocks with TCB and memory
  uint64_t unborn;      // blocks without TCB
  uint64_t populated;   // unborn blocks with populated pages and a guard; SizeClass::ahead counts them
  uint32_t next, prev;  // links of the list that list_of() names
  bool clean;           // all its memory is as mapped: no page of it is left, and no guard
  bool guarded;         // its blocks may have guards; see take_guards()
};

// One cache line, so that the child of a fork sees all of a chunk whose `base` it sees.
struct alignas(64) Chunk {
  char* base;    // set last; kNowhere while the chunk has no memory but its records
  char* mapped;  // where its mapping begins
  size_t stride;
  uint32_t blocks, extent_count;
  std::atomic<uint32_t> opened;  // extents whose blocks have been in a list
  uint32_t clean;                // opened extents that are clean
  uint16_t cls;
  uint16_t of_worker;  // free blocks of the class that a worker may keep to itself
  FiberRecord* fibers;
  Extent* extents;
};

extern Chunk chunks[] __attribute__((visibility("hidden")));
extern std::atomic<uint32_t> chunk_count __attribute__((visibility("hidden")));

namespace memory {

constexpr size_t kGranule = 64 * 1024;  // strides are multiples of it
constexpr size_t kMaxClasses = 1000, kMaxChunks = 4096;
constexpr uint32_t kMaxBlocks = 32768, kMaxExtents = kMaxBlocks / kPerExtent;
constexpr uint32_t kCool = 4096;    // free blocks per class that keep their memory; the reaper takes any more at once
constexpr uint32_t kKeep = 64;      // free blocks per class that keep their memory for ever
constexpr uint32_t kOfWorker = 32;  // free blocks that a worker keeps to itself
constexpr uint32_t kNone = ~0u;
inline char* const kNowhere = reinterpret_cast<char*>(1);  // no block begins there, and none has its handle in a chunk at that place

// The list that an extent is in. kWarm: some blocks are free, others in use. kWhole: some are free, all others unborn. kCold: none is free,
// some are unborn. kNoList: none is free or unborn.
enum List { kWarm, kWhole, kCold, kLists, kNoList };

// Blocks of one stride.
struct SizeClass {
  SpinLock lock;
  FiberRecord* hot = nullptr;
  uint32_t hot_count = 0;
  uint32_t free_count = 0;  // free blocks, hot ones included
  uint32_t low_water = 0;   // least free_count since the reaper's last tick
  uint32_t idle = 0;        // free blocks that the reaper has still to take since that tick
  uint32_t keep = kKeep;    // kKeep and kCool, or less where address space is scarce
  uint32_t cool = kCool;
  uint32_t next_chunk_blocks = 64;
  uint32_t unborn_taken = 0;  // unborn blocks that were ever taken; wraps
  uint32_t ahead = 0;         // unborn blocks that are populated, or are being populated
  size_t stack_size = 0;      // the stack and the guard of the latest block
  size_t guard_size = 0;
  int chunk = -1;  // the chunk that extents are opened in; -1: none
  uint32_t first[kLists] = {kNone, kNone, kNone}, last[kLists] = {kNone, kNone, kNone};
};

extern SizeClass classes[kMaxClasses] __attribute__((visibility("hidden")));
// The class whose unborn blocks are in demand.
extern std::atomic<SizeClass*> burst __attribute__((visibility("hidden")));
// In the child of a fork: the number of chunks whose unborn blocks may have pages of the parent's fibers.
extern uint32_t stale_chunks __attribute__((visibility("hidden")));

// An extent's id contains the number of its chunk.
inline Chunk& chunk_of(uint32_t id) { return chunks[id / kMaxExtents]; }
inline Extent& extent(uint32_t id) { return chunk_of(id).extents[id % kMaxExtents]; }
inline bool is_stale(uint32_t id) { return id / kMaxExtents < stale_chunks; }
inline FiberRecord* fiber_at(uint32_t id, uint32_t i) { return &chunk_of(id).fibers[id % kMaxExtents * kPerExtent + i]; }
inline SizeClass& class_of(FiberRecord* f) { return classes[chunks[f->memory.chunk].cls]; }
inline uint32_t extent_of(FiberRecord* f, uint64_t& bit) {
  uint32_t n = static_cast<uint32_t>(f - chunks[f->memory.chunk].fibers);
  bit = uint64_t{1} << (n % kPerExtent);
  return f->memory.chunk * kMaxExtents + n / kPerExtent;
}
inline uint64_t all_of(uint32_t id) {
  uint32_t n = chunk_of(id).blocks - id % kMaxExtents * kPerExtent;
  return n >= kPerExtent ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
}

// Changes which blocks of an extent are free and which are unborn. SizeClass::lock is held.
void set_masks(SizeClass& c, uint32_t id, uint64_t free, uint64_t unborn);
// Adds a block to the free ones of its extent. SizeClass::lock is held.
inline void set_free(SizeClass& c, FiberRecord* f) {
  uint64_t bit;
  uint32_t id = extent_of(f, bit);
  Extent& e = extent(id);
  set_masks(c, id, e.free | bit, e.unborn);
}

// Its guards are gone, with all its memory. SizeClass::lock is held.
void lose_guards(Extent& e);

// Opens one more extent. Returns false if the class's chunk has no other. SizeClass::lock is held.
bool open_extent(SizeClass& c);
// Reserves one more chunk for the class. Returns false without memory. SizeClass::lock is held.
bool add_chunk(SizeClass& c, unsigned cls, size_t stride);
// Gives back the address space of the chunk if none of its blocks has a TCB or is being changed. Returns false if one has, or if there is
// none. SizeClass::lock is held.
bool unmap_chunk(SizeClass& c, uint32_t index);
// Changes the protection of all chunks. Not in worker context.
void protect_chunks(int prot);

// True once the process has been seen to have little address space: it has a limit, or the kernel has refused some. Free chunks then give
// theirs back.
extern std::atomic<bool> scarce __attribute__((visibility("hidden")));

}  // namespace memory
}  // namespace fiberthread
