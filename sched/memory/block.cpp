// SPDX-License-Identifier: MIT
#include "sched/memory/block.h"

#include <sys/mman.h>

#include <new>

#include "sched/glibc/tcb.h"
#include "sched/memory/extents.h"
#include "sched/memory/guard.h"
#include "sched/memory/locked.h"
#include "sched/memory/reaper.h"
#include "sched/memory/shortage.h"
#include "sched/syscall.h"
#include "sched/worker.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace fiberthread {

using namespace memory;

std::atomic<bool> many_blocks{false};

namespace {

constexpr uint32_t kHot = 1024;  // free blocks per class in the order of their last use
constexpr uint32_t kIds = 64;    // ids that a worker takes at once
constexpr uint32_t kMany = 128;  // new blocks of a class, after which the reaper is started
constexpr uint32_t kAhead = 64;  // blocks that an idle worker populates ahead of a burst

std::atomic<uint32_t> next_id{1u << 22};

// Returns where the TCB of a block ends. If all blocks had it at the same place of a page, the hot lines of all fibers would share a few
// sets of each cache. With 256 fibers and more, some of them would always be out of the second-level cache. The stack is smaller by that:
// to give it another page instead would move the guard, or put the hot lines into a third page.
constexpr uint32_t kColours = 16;
char* top_of(FiberRecord* f) {
  auto i = static_cast<uint32_t>(f - chunks[f->memory.chunk].fibers);
  return f->memory.block + f->memory.block_size - i % kColours * 64;
}

// Strides grow by 64 kB up to 16 MB, then by 1/32 of the power of two below. The less a stride is more than what was asked for, the fewer
// blocks need another page table for their guards, and the less address space is lost.
constexpr unsigned kSteps = 32, kExact = 256;
size_t stride_of(size_t need, unsigned& cls) {
  size_t granules = (need + kGranule - 1) / kGranule;
  if (granules <= kExact) {
    cls = static_cast<unsigned>(granules);
    return granules * kGranule;
  }
  unsigned shift = 63 - __builtin_clzl((granules - 1) / kSteps);  // 3 and more
  size_t step = size_t{1} << shift;
  size_t rounded = (granules + step - 1) & ~(step - 1);
  cls = kExact + (shift - 3) * kSteps + static_cast<unsigned>(rounded >> shift) - kSteps;
  return rounded * kGranule;
}

// Returns the record of an unborn block, which the caller has taken out of its extent's masks.
FiberRecord* unborn_fiber(uint32_t id, uint32_t i) {
  FiberRecord* f = fiber_at(id, i);
  Chunk& k = chunk_of(id);
  // The write comes before the first read: a fresh page that is read first costs two faults, and an interrupt for every other CPU.
  f->memory.block_size = k.stride;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  // An unborn block with a TCB was just being made when the process was forked.
  if (!f->memory.block || f->memory.tcb) {
    new (f) FiberRecord;
    f->memory.block_size = k.stride;
    f->memory.chunk = static_cast<uint16_t>(id / kMaxExtents);
    f->run.state.store(State::Done, std::memory_order_relaxed);
    f->memory.block = k.base + (id % kMaxExtents * kPerExtent + i) * k.stride;
  }
  return f;
}

// Takes a block without TCB. Returns null without memory.
FiberRecord* take_unborn(SizeClass& c, unsigned cls, size_t stride) {
  uint32_t id, i;
  {
    SpinGuard guard(c.lock);
    if (__builtin_expect((c.unborn_taken + 1) % kBetweenLooks == 0, 0) && is_short()) return nullptr;  // the next one looks again
    while ((id = c.first[kCold]) == kNone)
      if (!open_extent(c) && !add_chunk(c, cls, stride)) return nullptr;
    Extent& e = extent(id);
    uint64_t ready = e.unborn & e.populated;
    i = static_cast<uint32_t>(__builtin_ctzll(ready ? ready : e.unborn));
    uint64_t bit = uint64_t{1} << i;
    if (ready) {
      e.populated &= ~bit;
      c.ahead--;
    }
    set_masks(c, id, 0, e.unborn & ~bit);
    if (c.unborn_taken == kMany) many_blocks.store(true, std::memory_order_relaxed);
    if (++c.unborn_taken > kAhead && c.ahead < kAhead) burst.store(&c, std::memory_order_relaxed);
  }
  return unborn_fiber(id, i);
}

void give_back_unborn(SizeClass& c, FiberRecord* f) {
  SpinGuard guard(c.lock);
  uint64_t bit;
  uint32_t id = extent_of(f, bit);
  Extent& e = extent(id);
  set_masks(c, id, e.free, e.unborn | bit);
}

FiberRecord* take_free(SizeClass& c, Worker* w) {
  if (w && w->kept.count && w->kept.of_class == &c) {
    w->kept.count--;
    FiberRecord* f = w->kept.first;
    w->kept.first = f->run.queue_next;
    return f;
  }
  SpinGuard guard(c.lock);
  FiberRecord* f = c.hot;
  if (f) {
    c.hot = f->run.queue_next;
    c.hot_count--;
    // The worker takes some more for the next time.
    if (w && !w->kept.count) {
      w->kept.of_class = &c;
      w->kept.first = c.hot;
      FiberRecord** end = &w->kept.first;
      uint32_t most = chunks[f->memory.chunk].of_worker / 2;
      for (; *end && w->kept.count < most; end = &(*end)->run.queue_next) w->kept.count++;
      c.hot = *end;
      *end = nullptr;
      c.hot_count -= w->kept.count;
      c.free_count -= w->kept.count;
    }
  } else {
    uint32_t id = c.first[kWarm] != kNone ? c.first[kWarm] : c.last[kWhole];
    if (id == kNone) return nullptr;
    Extent& e = extent(id);
    f = fiber_at(id, static_cast<uint32_t>(__builtin_ctzll(e.free)));
    set_masks(c, id, e.free & (e.free - 1), e.unborn);
  }
  if (--c.free_count < c.low_water) c.low_water = c.free_count;
  return f;
}

// Returns where the guard of a block with such a stack ends.
char* guard_below(const FiberRecord& f, size_t stack_size) { return f.memory.block + f.memory.block_size - to_pages(stack_size); }

uint32_t new_id(Worker* w) {
  if (w && w->kept.next_id % kIds != 0) return w->kept.next_id++;
  uint32_t id = next_id.fetch_add(kIds, std::memory_order_relaxed);
  if (id >= (1u << 30) - 2 * kIds) next_id.store(1u << 22, std::memory_order_relaxed);
  if (w) w->kept.next_id = id + 1;
  return id;
}

}  // namespace

FiberRecord* block_get(size_t stack_size, size_t guard_size, void* user_stack) {
  size_t need = user_stack ? tcb_reserve() + (kColours - 1) * 64 : stack_size;
  constexpr size_t kMost = size_t{1} << 46;  // the sums below must not overflow
  if (need > kMost || guard_size > kMost - need) return nullptr;
  guard_size = to_pages(guard_size);
  unsigned cls;
  size_t stride = stride_of(to_pages(need) + guard_size, cls);
  if (cls >= kMaxClasses) return nullptr;
  SizeClass& c = classes[cls];
  Worker* w = this_worker();
  FiberRecord* f = take_free(c, w);
  if (!f && !(f = take_unborn(c, cls, stride))) return nullptr;
  char* top = top_of(f);
  if (__builtin_expect(!f->memory.tcb, 0)) {
    // A stale block is mapped anew, because its guard may have been changing at the fork.
    bool stale = f->memory.chunk < stale_chunks, empty = !stale || wipe(f->memory.block, f->memory.block_size);
    if (stale) f->memory.guard_size = 0;
    f->memory.locked = false;
    if (!empty || !tcb_make(*f, top)) {
      drop(f->memory.block, f->memory.block + f->memory.block_size);
      give_back_unborn(c, f);
      return nullptr;
    }
    statistics.fresh.fetch_add(1, std::memory_order_relaxed);
  }
  f->memory.user_stack = user_stack != nullptr;
  if (user_stack) {
    f->memory.stack_low = static_cast<char*>(user_stack);
    f->memory.stack_high = f->memory.stack_low + stack_size;
  } else {
    f->memory.stack_high = tcb_low(top);
    f->memory.stack_low = f->memory.block + f->memory.block_size - stack_size;
    set_guard(*f, guard_below(*f, stack_size), guard_size);
    if (__atomic_load_n(&c.stack_size, __ATOMIC_RELAXED) != stack_size) __atomic_store_n(&c.stack_size, stack_size, __ATOMIC_RELAXED);
    if (__atomic_load_n(&c.guard_size, __ATOMIC_RELAXED) != guard_size) __atomic_store_n(&c.guard_size, guard_size, __ATOMIC_RELAXED);
  }
  if (__builtin_expect(locks_new() && !__atomic_load_n(&f->memory.locked, __ATOMIC_RELAXED), 0)) {
    char* low = f->memory.guard_size ? f->memory.guard + f->memory.guard_size : f->memory.block;
    if (!lock_block(*f, low, f->memory.block + f->memory.block_size)) {
      block_put(f);
      return nullptr;
    }
  }
  f->identity.id = new_id(w);
  // A fiber that makes one often makes another. So the caches fetch meanwhile what the next birth will touch.
  if (w && w->kept.count) {
    FiberRecord* next = w->kept.first;
    __builtin_prefetch(next->memory.stack_high - 64, 1);
    __builtin_prefetch(tcb_thread_pointer(next->memory.tcb), 1);
    __builtin_prefetch(static_cast<char*>(tcb_thread_pointer(next->memory.tcb)) - 64, 1);
    if (FiberRecord* then = next->run.queue_next)
      for (size_t line = 0; line < sizeof(FiberRecord); line += 64) __builtin_prefetch(reinterpret_cast<char*>(then) + line, 1);
  }
  return f;
}

bool block_populate() {
  SizeClass* burst_class = burst.load(std::memory_order_relaxed);
  if (__builtin_expect(!burst_class, 1)) return false;
  SizeClass& c = *burst_class;
  uint32_t id;
  uint64_t bits = 0;
  size_t stack_size, guard_size;
  {
    SpinGuard guard(c.lock);
    if ((id = c.first[kCold]) == kNone && open_extent(c)) id = c.first[kCold];
    uint64_t unpopulated = 0;
    while (id != kNone && !(unpopulated = extent(id).unborn & ~extent(id).populated)) {
      id = extent(id).next;
      if (id == kNone && open_extent(c)) id = c.last[kCold];
    }
    if (c.ahead >= kAhead || id == kNone || is_stale(id)) {
      burst.store(nullptr, std::memory_order_relaxed);
      return false;
    }
    for (int n = 0; n < 4 && unpopulated; n++) {
      bits |= unpopulated & -unpopulated;
      unpopulated &= unpopulated - 1;
    }
    c.ahead += static_cast<uint32_t>(__builtin_popcountll(bits));
    set_masks(c, id, extent(id).free, extent(id).unborn & ~bits);
    stack_size = __atomic_load_n(&c.stack_size, __ATOMIC_RELAXED);
    guard_size = __atomic_load_n(&c.guard_size, __ATOMIC_RELAXED);
    if (to_pages(stack_size) + guard_size > chunk_of(id).stride) guard_size = 0;  // they are those of two births
  }
  uint64_t refused = 0;  // blocks that the kernel does not populate: it is old, or has no memory
  for (uint64_t rest = bits; rest; rest &= rest - 1) {
    FiberRecord* f = unborn_fiber(id, static_cast<uint32_t>(__builtin_ctzll(rest)));
    char* top = top_of(f);
    // A fiber's birth and its first wait use the stack right below its TLS.
    char* low = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(tcb_low(top) - 1024) & ~(page_size() - 1));
    if (raw_syscall(SYS_madvise, arg(low), top - low, MADV_POPULATE_WRITE) != 0) refused |= rest & -rest;
    else set_guard(*f, guard_below(*f, stack_size), guard_size);
  }
  SpinGuard guard(c.lock);
  Extent& e = extent(id);
  e.populated |= bits & ~refused;
  c.ahead -= static_cast<uint32_t>(__builtin_popcountll(refused));
  set_masks(c, id, e.free, e.unborn | bits);
  return !refused;
}

namespace {
// SizeClass::lock is held.
void put_free(SizeClass& c, FiberRecord* f) {
  if (c.hot_count < kHot) {
    f->run.queue_next = c.hot;
    c.hot = f;
    c.hot_count++;
  } else {
    set_free(c, f);
  }
  c.free_count++;
}

// Gives back `f`, unless it is null, and all blocks that `w` keeps beyond `left`.
void put_free_and_kept(SizeClass& c, FiberRecord* f, Worker* w, uint32_t left) {
  uint32_t n, before, keep, cool;
  {
    SpinGuard guard(c.lock);
    before = c.free_count;
    keep = __atomic_load_n(&c.keep, __ATOMIC_RELAXED);
    cool = __atomic_load_n(&c.cool, __ATOMIC_RELAXED);
    for (; w && w->kept.count > left; w->kept.count--) {
      FiberRecord* kept = w->kept.first;
      w->kept.first = kept->run.queue_next;
      put_free(c, kept);
    }
    if (f) put_free(c, f);
    n = c.free_count;
  }
  if (__builtin_expect(n > keep, 0)) reaper_wake(n > cool && n / kPerExtent != before / kPerExtent ? Reap::AtOnce : Reap::AtTick);
}
}  // namespace

void block_put(FiberRecord* f) {
  SizeClass& c = class_of(f);
  Worker* w = this_worker();
  uint32_t most = chunks[f->memory.chunk].of_worker;
  if (w && (!w->kept.count || w->kept.of_class == &c) && w->kept.count < most) {
    w->kept.of_class = &c;
    f->run.queue_next = w->kept.count++ ? w->kept.first : nullptr;
    w->kept.first = f;
    return;
  }
  // Half of the worker's own blocks go too. Then it has room for blocks that come back, and some for fibers that it makes.
  put_free_and_kept(c, f, w && w->kept.of_class == &c ? w : nullptr, most / 2);
}

void block_put_kept(Worker* w) {
  if (w->kept.count) put_free_and_kept(*static_cast<SizeClass*>(w->kept.of_class), nullptr, w, 0);
}

FiberRecord* block_find(const void* handle) {
  auto h = reinterpret_cast<uintptr_t>(handle);
  for (uint32_t i = chunk_count.load(std::memory_order_acquire); i-- > 0;) {
    Chunk& k = chunks[i];
    uintptr_t offset = h - reinterpret_cast<uintptr_t>(__atomic_load_n(&k.base, __ATOMIC_RELAXED));
    if (offset >= k.stride * k.blocks) continue;
    // In granules, since processors divide 32 bits much faster than 64.
    FiberRecord* f = &k.fibers[static_cast<uint32_t>(offset / kGranule) / static_cast<uint32_t>(k.stride / kGranule)];
    return f->memory.tcb == handle ? f : nullptr;
  }
  return nullptr;
}

bool block_has_record(const void* p) {
  for (uint32_t i = chunk_count.load(std::memory_order_acquire); i-- > 0;) {
    uintptr_t offset = reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(chunks[i].fibers);
    if (offset < sizeof(FiberRecord) * chunks[i].blocks) return offset % sizeof(FiberRecord) == 0;
  }
  return false;
}

namespace {
// Visits the records of an extent. Returns false if visit() did.
template <class Visit>
bool each_of_extent(uint32_t chunk, uint32_t extent, Visit visit) {
  uint64_t all = all_of(chunk * kMaxExtents + extent);
  if (__atomic_load_n(&chunks[chunk].extents[extent].unborn, __ATOMIC_RELAXED) == all) return true;
  FiberRecord* f = &chunks[chunk].fibers[extent * kPerExtent];
  for (; all; all >>= 1, f++)
    if (f->memory.tcb && !visit(f)) return false;
  return true;
}
}  // namespace

void block_each(bool (*visit)(FiberRecord*, void*), void* data) {
  uint32_t n = chunk_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t opened = chunks[i].opened.load(std::memory_order_acquire);
    for (uint32_t j = 0; j < opened; j++)
      if (!each_of_extent(i, j, [&](FiberRecord* f) { return visit(f, data); })) return;
  }
}

bool block_each_at(BlockPlace& place, void (*visit)(FiberRecord*)) {
  for (; place.chunk < chunk_count.load(std::memory_order_acquire); place = {place.chunk + 1, 0}) {
    if (place.extent >= chunks[place.chunk].opened.load(std::memory_order_acquire)) continue;
    each_of_extent(place.chunk, place.extent++, [&](FiberRecord* f) { return visit(f), true; });
    return true;
  }
  return false;
}

}  // namespace fiberthread
