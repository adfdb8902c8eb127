// SPDX-License-Identifier: MIT
#include "sched/memory/extents.h"

#include <sys/mman.h>

#include "sched/life/fork.h"
#include "sched/memory/block.h"
#include "sched/memory/guard.h"
#include "sched/memory/reaper.h"
#include "sched/syscall.h"

namespace fiberthread {

constinit Chunk chunks[memory::kMaxChunks]{};
std::atomic<uint32_t> chunk_count{0};

namespace memory {

constinit SizeClass classes[kMaxClasses];
std::atomic<SizeClass*> burst{nullptr};
uint32_t stale_chunks = 0;

namespace {
constexpr size_t kPageTable = 2 << 20;  // bytes that one page table covers
SpinLock chunk_lock;                    // after SizeClass::lock

List list_of(const Extent& e, uint64_t all) {
  if (!e.free) return e.unborn ? kCold : kNoList;
  return (e.free | e.unborn) == all ? kWhole : kWarm;
}
}  // namespace

void set_masks(SizeClass& c, uint32_t id, uint64_t free, uint64_t unborn) {
  Extent& e = extent(id);
  uint64_t all = all_of(id);
  List before = list_of(e, all);
  if (e.clean && unborn != all) {
    e.clean = false;
    chunk_of(id).clean--;
  }
  e.free = free;
  __atomic_store_n(&e.unborn, unborn, __ATOMIC_RELAXED);
  List after = list_of(e, all);
  if (before == after) return;
  if (before != kNoList) {
    (e.prev == kNone ? c.first[before] : extent(e.prev).next) = e.next;
    (e.next == kNone ? c.last[before] : extent(e.next).prev) = e.prev;
  }
  if (after == kNoList) return;
  if (after == kWhole || unborn == all) {
    e.prev = c.last[after];
    e.next = kNone;
    (e.prev == kNone ? c.first[after] : extent(e.prev).next) = id;
    c.last[after] = id;
  } else {  // partly used extents come first: they are filled up, and others become empty
    e.prev = kNone;
    e.next = c.first[after];
    (e.next == kNone ? c.last[after] : extent(e.next).prev) = id;
    c.first[after] = id;
  }
}

bool add_chunk(SizeClass& c, unsigned cls, size_t stride) {
  SpinGuard guard(chunk_lock);
  uint32_t n = chunk_count.load(std::memory_order_relaxed);
  if (n == kMaxChunks) return false;
  uint32_t blocks = c.next_chunk_blocks;
  while (blocks > 1 && stride > (size_t{1} << 46) / blocks) blocks /= 2;
  for (; blocks; blocks /= 2) {
    uint32_t extents = (blocks + kPerExtent - 1) / kPerExtent;
    size_t size = stride * blocks + 2 * kGranule;
    static_assert(sizeof(FiberRecord) * kPerExtent % kPage == 0, "an extent's records are whole pages");
    size_t records = (sizeof(FiberRecord) * blocks + kPage - 1) & ~(kPage - 1);
    void* mem = mmap(nullptr, size, protection(), MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (mem == MAP_FAILED) continue;
    void* fibers = mmap(nullptr, records + sizeof(Extent) * extents, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1, 0);
    if (fibers == MAP_FAILED) {
      munmap(mem, size);
      continue;
    }
    raw_syscall(SYS_madvise, arg(mem), static_cast<long>(size), MADV_NOHUGEPAGE);
    raw_syscall(SYS_madvise, arg(fibers), static_cast<long>(records), MADV_NOHUGEPAGE);
    Chunk& k = chunks[n];
    char* base = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(mem) + kGranule - 1) & ~(kGranule - 1));
    // A block's hot top and the next block's guard share a page table, unless a page table begins between them.
    size_t common = stride & -stride;
    if (common > kPageTable) common = kPageTable;
    if (common > kGranule && reinterpret_cast<uintptr_t>(base) % common == 0) base += kGranule;
    k.stride = stride;
    k.blocks = blocks;
    k.extent_count = extents;
    k.opened.store(0, std::memory_order_relaxed);
    k.clean = 0;
    k.cls = static_cast<uint16_t>(cls);
    k.fibers = static_cast<FiberRecord*>(fibers);
    k.extents = reinterpret_cast<Extent*>(static_cast<char*>(fibers) + records);
    __atomic_store_n(&k.base, base, __ATOMIC_RELEASE);
    chunk_count.store(n + 1, std::memory_order_release);  // publishes the chunk to block_find
    c.chunk = static_cast<int>(n);
    if (c.next_chunk_blocks < kMaxBlocks) c.next_chunk_blocks *= 2;
    return true;
  }
  return false;
}

bool open_extent(SizeClass& c) {
  if (c.chunk < 0) return false;
  Chunk& k = chunks[c.chunk];
  uint32_t n = k.opened.load(std::memory_order_relaxed);
  if (n == k.extent_count) return false;
  uint32_t id = static_cast<uint32_t>(c.chunk) * kMaxExtents + n;
  extent(id).clean = true;
  k.clean++;
  set_masks(c, id, 0, all_of(id));
  k.opened.store(n + 1, std::memory_order_release);
  return true;
}

}  // namespace memory

using namespace memory;

// A fork takes none of our locks. It waits for malloc's lock afterwards, and a preempted fiber may hold that, while all workers would spin
// for ours. So in the child any of this may be half changed. The child relies only on which chunks there are, and how many of their extents
// were opened. Even there, it may see the last write without the writes before it, because a fork copies page by page while other CPUs go
// on. So the child sets anew all words that later use relies on.
FIBERTHREAD_IN_FORK_CHILD(Blocks, [](FiberRecord* survivor) {
  // All other fibers are gone. Their TCBs left libc's list at the fork, so each is made anew when its block is used again. Until then their
  // memory stays as it was, as that of dead threads does on NPTL: the child may look at it.
  reaper_reset_after_fork();
  chunk_lock.reset();
  burst.store(nullptr, std::memory_order_relaxed);
  uint32_t n = 0;
  while (n < kMaxChunks && chunks[n].base) n++;
  for (uint32_t i = n, known = chunk_count.load(std::memory_order_relaxed); i < known; i++) chunks[i].base = nullptr;
  chunk_count.store(n, std::memory_order_relaxed);
  stale_chunks = n;
  for (auto& c : classes) {
    c.lock.reset();
    if (c.chunk >= static_cast<int>(n)) c.chunk = -1;
  }
  for (uint32_t i = 0; i < n; i++) {
    SizeClass& c = classes[chunks[i].cls];
    c.hot = nullptr;
    c.hot_count = c.free_count = c.low_water = c.idle = c.ahead = 0;
    for (auto& id : c.first) id = kNone;
    for (auto& id : c.last) id = kNone;
    c.chunk = static_cast<int>(i);  // the last of several
  }
  for (uint32_t i = 0; i < n; i++) {
    Chunk& k = chunks[i];
    uint32_t opened = k.opened.load(std::memory_order_relaxed);
    k.clean = 0;
    for (uint32_t j = 0; j < k.extent_count; j++) {
      Extent& e = k.extents[j];
      if (j >= opened) {
        if (e.free | e.unborn | e.warm) e = Extent{};
        continue;
      }
      uint32_t id = i * kMaxExtents + j;
      uint64_t all = all_of(id), unborn = 0;
      // Records whose pages were given back stay untouched.
      for (uint32_t b = 0; b < kPerExtent && all >> b & 1; b++) {
        FiberRecord* f = fiber_at(id, b);
        if (f == survivor) continue;
        unborn |= uint64_t{1} << b;
        if (e.unborn == all || !f->memory.block) continue;
        f->run.state.store(State::Done, std::memory_order_relaxed);
        f->run.bound.store(nullptr, std::memory_order_relaxed);  // its worker is the parent's
        f->join.valid.store(false, std::memory_order_relaxed);
        f->join.lock.reset();
        f->memory.tcb = nullptr;
      }
      e.free = e.unborn = e.warm = 0;
      e.clean = false;
      set_masks(classes[k.cls], id, 0, unborn);
    }
  }
})

}  // namespace fiberthread
