// SPDX-License-Identifier: MIT
// How blocks are kept: each chunk of address space has extents, and each extent has 64 blocks. The rest of sched/memory uses this, and so does
// preload/debug_layout.cpp, which tells debuggers about it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/spinlock.h"

namespace fiberthread {

constexpr uint32_t kPerExtent = 64;

// Blocks side by side, whose memory goes back at once with its page tables. Bit i stands for block i; a block that is in
// neither word is in use, in SizeClass::hot, in Worker::kept, or with the reaper. Under SizeClass::lock.
struct Extent {
  uint64_t free;        // with TCB and memory
  uint64_t unborn;      // without
  uint64_t warm;        // of these, those with populated pages and a guard; SizeClass::ahead counts them
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

extern Chunk chunks[] __attribute__((visibility("hidden")));
extern std::atomic<uint32_t> chunk_count __attribute__((visibility("hidden")));

namespace memory {

constexpr size_t kGranule = 64 * 1024;  // strides are multiples
constexpr size_t kMaxClasses = 512, kMaxChunks = 4096;
constexpr uint32_t kMaxBlocks = 32768, kMaxExtents = kMaxBlocks / kPerExtent;
constexpr uint32_t kCool = 4096;  // free blocks per class that keep their memory; the reaper takes those beyond at once
constexpr uint32_t kKeep = 64;    // those that keep it for ever
constexpr uint32_t kNone = ~0u;

enum List { kWarm, kWhole, kCold, kLists, kNoList };  // some free; free but for unborn ones; only unborn ones

// Blocks of one stride.
struct SizeClass {
  SpinLock lock;
  FiberRecord* hot = nullptr;
  uint32_t hot_count = 0;
  uint32_t free_count = 0;  // hot ones too
  uint32_t low_water = 0;   // of free_count since the reaper's last tick
  uint32_t idle = 0;        // what the reaper shall still take since then
  uint32_t next_chunk_blocks = 64;
  uint32_t unborn_taken = 0;  // ever; wraps
  uint32_t ahead = 0;         // unborn blocks that are populated, or just being
  size_t guard_size = 0;      // of its latest block
  int chunk = -1;             // the one that still has extents that were never opened
  uint32_t first[kLists] = {kNone, kNone, kNone}, last[kLists] = {kNone, kNone, kNone};
};

extern SizeClass classes[kMaxClasses] __attribute__((visibility("hidden")));
// The class whose unborn blocks are in demand.
extern std::atomic<SizeClass*> burst __attribute__((visibility("hidden")));
// In a fork child: the number of chunks in which unborn blocks are not empty.
extern uint32_t stale_chunks __attribute__((visibility("hidden")));

// An extent's number says its chunk.
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
// SizeClass::lock is held.
inline void set_free(SizeClass& c, FiberRecord* f) {
  uint64_t bit;
  uint32_t id = extent_of(f, bit);
  Extent& e = extent(id);
  set_masks(c, id, e.free | bit, e.unborn);
}

// Opens one more extent, if the chunk has one. SizeClass::lock is held.
bool open_extent(SizeClass& c);
// Reserves one more chunk for the class. SizeClass::lock is held.
bool add_chunk(SizeClass& c, unsigned cls, size_t stride);

}  // namespace memory
}  // namespace fiberthread
