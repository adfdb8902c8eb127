// SPDX-License-Identifier: MIT
#include "sched/memory/extents.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include "sched/large.h"
#include "sched/life/fork.h"
#include "sched/memory/block.h"
#include "sched/memory/guard.h"
#include "sched/memory/locked.h"
#include "sched/memory/reaper.h"
#include "sched/syscall.h"

namespace fiberthread {

FIBERTHREAD_LARGE constinit Chunk chunks[memory::kMaxChunks]{};
std::atomic<uint32_t> chunk_count{0};

namespace memory {

FIBERTHREAD_LARGE_DATA constinit SizeClass classes[kMaxClasses];
std::atomic<SizeClass*> burst{nullptr};
std::atomic<bool> scarce{false};
uint32_t stale_chunks = 0;

namespace {
constexpr size_t kPageTable = 2 << 20;  // bytes that one page table covers
SpinLock chunk_lock;                    // after SizeClass::lock

// Where address space is limited, a chunk takes at most this part of the limit, and so do the free blocks of a class that keep theirs.
// libc keeps 40 MB.
constexpr size_t kPartOfChunk = 64, kPartKept = 16, kPartOfWorker = 64;
constexpr size_t kAssumedLimit = kPartKept * (40 << 20);  // after a refusal without a limit that is known
constexpr size_t kUnlimited = ~size_t{0};
size_t known_limit = kUnlimited;  // chunk_lock protects it

size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

size_t size_of(const Chunk& k) { return k.stride * k.blocks + 2 * kGranule; }

void limit_class(Chunk& k) {
  SizeClass& c = classes[k.cls];
  size_t kept = known_limit / kPartKept / k.stride;
  k.of_worker = static_cast<uint16_t>(smaller(kOfWorker, known_limit / kPartOfWorker / k.stride));
  __atomic_store_n(&c.keep, static_cast<uint32_t>(smaller(kKeep, kept)), __ATOMIC_RELAXED);
  __atomic_store_n(&c.cool, static_cast<uint32_t>(smaller(kCool, kept)), __ATOMIC_RELAXED);
}

// Makes all classes keep as much as the limit allows. chunk_lock is held. A class's words may change while others read them: any value
// that it ever has is right.
void apply_limit(size_t limit) {
  if (limit == known_limit) return;
  known_limit = limit;
  if (limit != kUnlimited) {
    scarce.store(true, std::memory_order_relaxed);
    many_blocks.store(true, std::memory_order_relaxed);  // the reaper is needed
  }
  for (uint32_t i = 0, n = chunk_count.load(std::memory_order_relaxed); i < n; i++) limit_class(chunks[i]);
}

size_t address_space() {
  rlimit limit;
  bool known = raw_syscall(SYS_prlimit64, 0, RLIMIT_AS, 0, arg(&limit)) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return known ? limit.rlim_cur : kUnlimited;
}

// Maps memory for the chunk's blocks. Returns false if the kernel refuses. chunk_lock is held.
bool map_chunk(Chunk& k) {
  size_t size = size_of(k);
  char* mem = map_unlocked(size, protection(), MAP_NORESERVE | MAP_STACK);
  if (!mem) return false;
  raw_syscall(SYS_madvise, arg(mem), static_cast<long>(size), MADV_NOHUGEPAGE);
  char* base = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(mem) + kGranule - 1) & ~(kGranule - 1));
  // A block's hot top and the next block's guard share a page table, unless a page table begins between them.
  size_t common = k.stride & -k.stride;
  if (common > kPageTable) common = kPageTable;
  if (common > kGranule && reinterpret_cast<uintptr_t>(base) % common == 0) base += kGranule;
  k.mapped = mem;
  __atomic_store_n(&k.base, base, __ATOMIC_RELEASE);
  return true;
}

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
    e.guarded = take_guards();
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

void lose_guards(Extent& e) {
  if (e.guarded) give_guards();
  e.guarded = false;
}

bool add_chunk(SizeClass& c, unsigned cls, size_t stride) {
  SpinGuard guard(chunk_lock);
  size_t limit = address_space();
  // A refusal is remembered until a limit is known.
  if (limit != kUnlimited || !scarce.load(std::memory_order_relaxed)) apply_limit(limit);
  uint32_t n = chunk_count.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < n; i++)
    if (chunks[i].cls == cls && chunks[i].base == kNowhere && map_chunk(chunks[i])) {
      c.chunk = static_cast<int>(i);
      return true;
    }
  uint32_t blocks = c.next_chunk_blocks;
  while (blocks > 1 && stride > smaller(size_t{1} << 46, limit / kPartOfChunk) / blocks) blocks /= 2;
  for (; blocks && n < kMaxChunks; blocks /= 2) {
    uint32_t extents = (blocks + kPerExtent - 1) / kPerExtent;
    // So no two extents share a page of records where pages have 4 kB.
    static_assert(sizeof(FiberRecord) * kPerExtent % 4096 == 0);
    size_t records = to_pages(sizeof(FiberRecord) * blocks), size = records + sizeof(Extent) * extents;
    char* fibers = map_unlocked(size, PROT_READ | PROT_WRITE, MAP_NORESERVE);
    if (!fibers) continue;
    Chunk& k = chunks[n];
    k.stride = stride;
    k.blocks = blocks;
    k.extent_count = extents;
    k.opened.store(0, std::memory_order_relaxed);
    k.clean = 0;
    k.cls = static_cast<uint16_t>(cls);
    limit_class(k);
    k.fibers = reinterpret_cast<FiberRecord*>(fibers);
    k.extents = reinterpret_cast<Extent*>(fibers + records);
    if (!map_chunk(k)) {
      unmap_memory(fibers, size);
      continue;
    }
    raw_syscall(SYS_madvise, arg(fibers), static_cast<long>(records), MADV_NOHUGEPAGE);
    chunk_count.store(n + 1, std::memory_order_release);  // publishes the chunk to block_find
    c.chunk = static_cast<int>(n);
    if (c.next_chunk_blocks < kMaxBlocks) c.next_chunk_blocks *= 2;
    return true;
  }
  if (known_limit == kUnlimited) apply_limit(kAssumedLimit);
  return false;
}

bool unmap_chunk(SizeClass& c, uint32_t index) {
  Chunk& k = chunks[index];
  uint32_t first = index * kMaxExtents, n = k.opened.load(std::memory_order_relaxed);
  if (k.base == kNowhere) return false;
  for (uint32_t i = 0; i < n; i++)
    if (k.extents[i].unborn != all_of(first + i)) return false;
  for (uint32_t i = 0; i < n; i++) {
    set_masks(c, first + i, 0, 0);
    lose_guards(k.extents[i]);
    c.ahead -= static_cast<uint32_t>(__builtin_popcountll(k.extents[i].populated));
    k.extents[i].populated = 0;
  }
  k.opened.store(0, std::memory_order_relaxed);
  if (c.chunk == static_cast<int>(index)) c.chunk = -1;
  // The records stay readable, as zeros: the blocks will be elsewhere.
  drop(reinterpret_cast<char*>(k.fibers), reinterpret_cast<char*>(k.extents));
  SpinGuard guard(chunk_lock);
  // The place goes before the memory. A child of a fork in between has memory that it does not use.
  __atomic_store_n(&k.base, kNowhere, __ATOMIC_RELEASE);
  unmap_memory(k.mapped, size_of(k));
  return true;
}

void protect_chunks(int prot) {
  Busy busy;
  SpinGuard guard(chunk_lock);
  for (uint32_t i = 0, n = chunk_count.load(std::memory_order_relaxed); i < n; i++)
    if (chunks[i].base != kNowhere)
      raw_syscall(SYS_mprotect, arg(chunks[i].base), static_cast<long>(chunks[i].stride * chunks[i].blocks), prot);
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
FIBERTHREAD_IN_FORK_CHILD(Blocks, blocks, [](FiberRecord* survivor) {
  // All other fibers are gone. Their TCBs left libc's list at the fork, so each is made anew when its block is used again. Until then their
  // memory stays as it was, as that of dead threads does on NPTL: the child may look at it.
  chunk_lock.reset();
  burst.store(nullptr, std::memory_order_relaxed);
  uint32_t n = 0;
  while (n < kMaxChunks && chunks[n].base) n++;
  for (uint32_t i = n, known = chunk_count.load(std::memory_order_relaxed); i < known; i++) chunks[i].base = nullptr;
  chunk_count.store(n, std::memory_order_relaxed);
  stale_chunks = n;
  forget_guards();  // each opened extent takes its guards again
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
    if (chunks[i].base == kNowhere) chunks[i].opened.store(0, std::memory_order_relaxed);
    else c.chunk = static_cast<int>(i);  // the last of several
  }
  for (uint32_t i = 0; i < n; i++) {
    Chunk& k = chunks[i];
    uint32_t opened = k.opened.load(std::memory_order_relaxed);
    k.clean = 0;
    for (uint32_t j = 0; j < k.extent_count; j++) {
      Extent& e = k.extents[j];
      if (j >= opened) {
        if (e.free | e.unborn | e.populated) e = Extent{};
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
        f->join.in_child();
        f->memory.tcb = nullptr;
      }
      e.free = e.unborn = e.populated = 0;
      e.clean = false;
      e.guarded = take_guards();
      set_masks(classes[k.cls], id, 0, unborn);
    }
  }
})

}  // namespace fiberthread
