// SPDX-License-Identifier: MIT
#include "sched/memory/reclaim.h"

#include <string.h>
#include <sys/mman.h>

#include "sched/memory/block.h"
#include "sched/memory/extents.h"
#include "sched/memory/guard.h"

namespace fiberthread {

using namespace memory;

unsigned block_take_idle(FreeGroup* to, unsigned room, bool tick, bool all) {
  unsigned count = 0;
  uint32_t used = chunk_count.load(std::memory_order_acquire);
  static bool seen[kMaxClasses];
  memset(seen, 0, sizeof seen);
  for (uint32_t i = 0; i < used; i++) {
    unsigned cls = chunks[i].cls;
    if (seen[cls]) continue;
    seen[cls] = true;
    SizeClass& c = classes[cls];
    SpinGuard guard(c.lock);
    if (tick) {
      // Half of the blocks that no fiber has wanted for a whole tick go, because births may come in waves. A small rest goes at once: to
      // halve it again and again takes long.
      c.idle = c.low_water < 2 * kKeep ? c.low_water : c.low_water / 2;
      c.low_water = c.free_count;
    }
    uint32_t keep = all ? 0 : __atomic_load_n(&c.keep, __ATOMIC_RELAXED), cool = all ? 0 : __atomic_load_n(&c.cool, __ATOMIC_RELAXED);
    uint32_t most = c.free_count > keep ? c.free_count - keep : 0, excess = c.free_count > cool ? c.free_count - cool : 0;
    if (excess < c.idle) excess = c.idle;
    if (excess > most) excess = most;
    uint32_t before = c.free_count;
    while (excess && count < room) {
      uint32_t id = c.first[kWhole];
      if (id == kNone) {
        if (c.hot_count > keep) {
          for (uint32_t n = excess; n && c.hot_count > keep; n--) {
            FiberRecord* f = c.hot;
            c.hot = f->run.queue_next;
            c.hot_count--;
            set_free(c, f);
          }
          continue;
        }
        id = c.last[kWarm];
        if (id == kNone) break;
      }
      Extent& e = extent(id);
      to[count++] = {id, e.free};
      uint32_t n = static_cast<uint32_t>(__builtin_popcountll(e.free));
      c.free_count -= n;
      excess = n < excess ? excess - n : 0;
      set_masks(c, id, 0, e.unborn);
    }
    before -= c.free_count;
    c.idle -= c.idle < before ? c.idle : before;
    if (c.free_count < c.low_water) c.low_water = c.free_count;
  }
  return count;
}

namespace {
bool more_free(bool all) {
  uint32_t used = chunk_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; i++) {
    SizeClass& c = classes[chunks[i].cls];
    if (__atomic_load_n(&c.free_count, __ATOMIC_RELAXED) > (all ? 0 : __atomic_load_n(&c.keep, __ATOMIC_RELAXED))) return true;
  }
  return false;
}
}  // namespace

bool block_any_idle() { return more_free(false); }
bool block_any_free() { return more_free(true); }

bool block_unmap_idle() {
  bool any = false;
  for (uint32_t i = 0, n = chunk_count.load(std::memory_order_acquire); i < n; i++) {
    SizeClass& c = classes[chunks[i].cls];
    SpinGuard guard(c.lock);
    any |= unmap_chunk(c, i);
  }
  return any;
}

void block_before_start() {
  if (!stale_chunks || !scarce.load(std::memory_order_relaxed)) return;
  constexpr size_t kNeeded = 32 << 20;  // for workers, queues and the first fibers
  if (void* mem = map_memory(kNeeded, PROT_NONE, MAP_NORESERVE)) {
    unmap_memory(mem, kNeeded);
    return;
  }
  Busy busy;
  block_unmap_idle();
}

FiberRecord* block_of(const FreeGroup& idle, unsigned i) { return fiber_at(idle.extent, i); }

void block_keep(FreeGroup& idle, unsigned i) {
  FiberRecord* f = block_of(idle, i);
  SizeClass& c = class_of(f);
  idle.blocks &= ~(uint64_t{1} << i);
  SpinGuard guard(c.lock);
  set_free(c, f);
  c.free_count++;
}

namespace {

// Empties n extents side by side, of which the caller holds all blocks. Returns false if the kernel refuses.
bool wipe_extents(uint32_t id, uint32_t n) {
  Chunk& k = chunk_of(id);
  uint32_t begin = id % kMaxExtents * kPerExtent, end = begin + n * kPerExtent;
  if (end > k.blocks) end = k.blocks;
  // The records go too, and are readable as zeros. They go first: in the child of a fork between the two steps, a record that is left would
  // claim a guard that is gone.
  clear(reinterpret_cast<char*>(&k.fibers[begin]), reinterpret_cast<char*>(&k.fibers[end]));
  return wipe(k.base + begin * k.stride, (end - begin) * k.stride);
}

// Takes the rest of an extent, of which the caller has `ours`. Returns false, and takes nothing, if another block is free or in use.
bool hold(SizeClass& c, uint32_t id, uint64_t ours) {
  SpinGuard guard(c.lock);
  Extent& e = extent(id);
  if (e.free || (e.unborn | ours) != all_of(id) || is_stale(id)) return false;
  set_masks(c, id, 0, 0);
  return true;
}

void no_longer_populated(SizeClass& c, Extent& e) {
  c.ahead -= static_cast<uint32_t>(__builtin_popcountll(e.populated));
  e.populated = 0;
}

void free_of_memory(SizeClass& c, uint32_t id) {
  SpinGuard guard(c.lock);
  set_masks(c, id, 0, all_of(id));
  no_longer_populated(c, extent(id));
  extent(id).clean = true;
  lose_guards(extent(id));
  chunk_of(id).clean++;
}

void empty(SizeClass& c, uint32_t id, uint64_t blocks) {
  Chunk& k = chunk_of(id);
  // One call serves neighbouring blocks. It runs over their guards, which stay.
  for (uint64_t bits = blocks; bits;) {
    uint32_t i = static_cast<uint32_t>(__builtin_ctzll(bits)), j = i;
    while (j < kPerExtent && bits >> j & 1) j++;
    uint64_t run = (j - i == 64 ? ~uint64_t{0} : ((uint64_t{1} << (j - i)) - 1)) << i;
    char* low = k.base + (id % kMaxExtents * kPerExtent + i) * k.stride;
    drop(low, low + (j - i) * k.stride);
    bits &= ~run;
  }
  SpinGuard guard(c.lock);
  Extent& e = extent(id);
  if (e.populated & blocks) no_longer_populated(c, e);  // the caller holds the whole extent, and could not wipe it
  set_masks(c, id, e.free, e.unborn | blocks);
}

// Wipes a whole chunk once all its extents are clean: page tables that two extents share go only with both.
void wipe_chunk(SizeClass& c, uint32_t index) {
  Chunk& k = chunks[index];
  uint32_t first = index * kMaxExtents, n;
  {
    SpinGuard guard(c.lock);
    n = k.opened.load(std::memory_order_relaxed);
    if (k.clean != n || n < 2) return;
    for (uint32_t i = 0; i < n; i++) set_masks(c, first + i, 0, 0);
  }
  wipe_extents(first, n);
  for (uint32_t i = 0; i < n; i++) free_of_memory(c, first + i);
}

}  // namespace

void block_empty(const FreeGroup* idle, unsigned count) {
  for (unsigned i = 0; i < count;) {
    uint32_t id = idle[i].extent, n = 0;
    SizeClass& c = classes[chunk_of(id).cls];
    while (i + n < count && idle[i + n].extent == id + n && (id + n) / kMaxExtents == id / kMaxExtents &&
           hold(c, id + n, idle[i + n].blocks))
      n++;
    if (n == 0) {
      empty(c, id, idle[i++].blocks);
      continue;
    }
    i += n;
    bool wiped = wipe_extents(id, n);
    for (uint32_t j = 0; j < n; j++)
      if (wiped) free_of_memory(c, id + j);
      else empty(c, id + j, all_of(id + j));
    wipe_chunk(c, id / kMaxExtents);
    if (!scarce.load(std::memory_order_relaxed)) continue;
    SpinGuard guard(c.lock);
    unmap_chunk(c, id / kMaxExtents);
  }
}

}  // namespace fiberthread
