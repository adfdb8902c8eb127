// SPDX-License-Identifier: MIT
#include "preload/explore/memory/races.h"

#include <errno.h>

#include <initializer_list>

#include "preload/explore/memory/threads.h"

namespace fiberthread {
namespace {

constexpr uint32_t kFirstOfPlace = 32;  // a place of code is so often a point, whatever it accesses
constexpr uint32_t kQuiet = 2000;       // so many accesses of a fiber without a point: the next is one, or a loop could wait for ever
constexpr uint32_t kLongStreak = 1000;  // after so many points of one fiber in a row, at places that are not new, others come first
constexpr uint32_t kMostPlainPoints = 200'000;  // after so many points, plain accesses are points only as kQuiet says
constexpr uint32_t kMostPoints = 500'000;       // and atomic ones as kQuietAtomics says, or a long run would be taken for a livelock
constexpr uint32_t kQuietAtomics = 64;
constexpr size_t kPlaces = 1 << 16;
constexpr size_t kMostRange = 1 << 16;  // of a longer access, the first bytes are looked at

struct Place {
  uintptr_t pc;
  uint32_t points;
  bool racy;
};

uint32_t points_made = 0;
Place* places = nullptr;

Place* place_of(uintptr_t pc) {
  if (!places) places = static_cast<Place*>(take(kPlaces * sizeof(Place)));
  if (!places) return nullptr;
  size_t i = pc % kPlaces;
  for (size_t tries = 0; tries < 64; tries++, i = (i + 1) % kPlaces) {
    if (!places[i].pc) places[i].pc = pc;
    if (places[i].pc == pc) return &places[i];
  }
  return nullptr;
}

// Which accesses are points must be the same for each strategy: nothing but what the program has done so far decides.
// `fresh`: because its place is new. A loop that waits for others has no such points, but for its first rounds.
bool is_point(Thread* t, const Cell* c, uint8_t kind, uintptr_t pc, bool& fresh) {
  bool atomic = kind & kAtomic;
  Place* p = atomic ? nullptr : place_of(pc);
  bool racy = (c && c->racy) || (p && p->racy);
  fresh = p && !racy && p->points < kFirstOfPlace;
  bool wanted = atomic || racy || fresh;
  if (!wanted || points_made > (atomic ? kMostPoints : kMostPlainPoints)) {
    if (++t->quiet < (atomic ? kQuietAtomics : kQuiet)) return false;
  }
  if (p) p->points++;
  points_made++;
  t->quiet = 0;
  return true;
}

const char* words_of(uint8_t kind) {
  if (kind & kFree) return "the free() of";
  if (kind & kAtomic) return kind & kWrite ? "an atomic write to" : "an atomic read of";
  return kind & kWrite ? "a write to" : "a read of";
}

uint32_t bytes(uint8_t mask) { return static_cast<uint32_t>(__builtin_popcount(mask)); }

void found(Thread* t, Cell& c, uintptr_t granule, const Access& other, uintptr_t address, size_t size, uint8_t kind, uintptr_t pc) {
  for (uintptr_t place : {other.pc, pc})
    if (Place* p = place_of(place)) p->racy = true;
  c.racy = true;
  if (c.benign || lost || !(fiberthread_explore_memory & kMemoryRaces)) return;
  auto access = [](uintptr_t address, uintptr_t pc, size_t size, uint32_t number, uint8_t kind) {
    return RacingAccess{address, pc, static_cast<uint32_t>(size), number, !!(kind & kWrite), !!(kind & kAtomic), !!(kind & kFree)};
  };
  Race r;
  r.first = access(granule + static_cast<uintptr_t>(__builtin_ctz(other.mask)), other.pc, bytes(other.mask), threads[other.thread].number,
                   other.kind);
  r.second = access(address, pc, size, t->number, kind);
  fiberthread_explore_race(&r);
}

// Looks at one cell for the access, of whose bytes `mask` are there.
void look(Thread* t, Cell& c, uintptr_t granule, uint8_t mask, uintptr_t address, size_t size, uint8_t kind, uintptr_t pc) {
  if (!c.first) c.first = static_cast<uint8_t>(t->id + 1);
  else if (c.first != t->id + 1) c.foreign = true;
  for (auto& a : c.accesses)
    if (a.used && a.thread != t->id && a.mask & mask && (a.kind | kind) & kWrite && !(a.kind & kind & kAtomic) &&
        value(t->clock, a.thread) < a.clock)
      return found(t, c, granule, a, address, size, kind, pc);
  Access* to = nullptr;
  for (auto& a : c.accesses) {
    // What conflicts with that one, unordered, will conflict with this one too.
    bool covered = a.used && !(a.mask & ~mask) && (kind & kWrite || !(a.kind & kWrite)) && (!(kind & kAtomic) || a.kind & kAtomic) &&
                   value(t->clock, a.thread) >= a.clock;
    if (covered) a.used = false;
    if (!a.used && !to) to = &a;
  }
  if (!to) to = &c.accesses[c.next++ % (sizeof c.accesses / sizeof *c.accesses)];
  *to = {value(t->clock, t->id), t->id, mask, kind, true, pc};
}

uint8_t mask_of(uintptr_t granule, uintptr_t from, uintptr_t to) {
  uintptr_t low = from > granule ? from - granule : 0, high = to < granule + kGranule ? to - granule : kGranule;
  return static_cast<uint8_t>(((1u << high) - 1) & ~((1u << low) - 1));
}

// Comes to a point. Not with the guard.
void point(const Thread* t, uint8_t kind, uintptr_t address, uintptr_t pc, bool fresh) {
  static const Thread* last = nullptr;
  static uint32_t streak = 0;
  int error = errno;
  if (last != t) streak = 0;
  last = t;
  if (fresh || ++streak < kLongStreak) {
    fiberthread_explore_point(words_of(kind), address, pc, 0);
  } else {
    // It may wait in a loop for another thread, which would never run in a schedule without switches.
    streak = 0;
    fiberthread_explore_point(words_of(kind), address, pc, 1);
    memory_yields();
  }
  errno = error;
}

}  // namespace

void memory_access(uintptr_t address, size_t size, uint8_t kind, uintptr_t pc) {
  if (!memory_explored() || !size) return;
  Thread* t;
  bool at_point = false, fresh = false;
  if (size > kMostRange) size = kMostRange;
  {
    Guard guard;
    t = guard ? this_thread() : nullptr;
    if (!t || t->ignored) return;
    uintptr_t here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    Cell* c = cell_of(address, false);
    // On its own stack a fiber is alone until another one was seen there.
    if (address - here < t->stack_high - here && !(kind & kAtomic) && (!c || !c->first || (c->first == t->id + 1 && !c->foreign))) return;
    at_point = is_point(t, c, kind, pc, fresh);
  }
  if (at_point) point(t, kind, address, pc, fresh);
  Guard guard;
  t = guard ? this_thread() : nullptr;
  if (!t) return;
  catch_up(t);
  uintptr_t end = address + size;
  for (uintptr_t granule = address & ~(kGranule - 1); granule < end; granule += kGranule)
    if (Cell* c = cell_of(granule, true)) look(t, *c, granule, mask_of(granule, address, end), address, size, kind, pc);
}

void memory_freed(uintptr_t address, size_t size, uintptr_t pc) {
  if (!memory_explored()) return;
  Thread* t = nullptr;
  bool shared = false;
  if (pc) {
    Guard guard;
    t = guard ? this_thread() : nullptr;
    if (t && !t->ignored)
      for_cells(address, address + (size < kPageSize ? size : kPageSize),
                [&](Cell& c, uintptr_t) { shared |= c.first && (c.foreign || c.first != t->id + 1); });
  }
  if (shared) point(t, kWrite | kFree, address, pc, false);
  Guard guard;
  if (!guard) {
    lost = true;
    return;
  }
  t = this_thread();
  if (t) catch_up(t);
  for_cells(address, address + size, [&](Cell& c, uintptr_t granule) {
    if (shared && t) look(t, c, granule, mask_of(granule, address, address + size), address, size, kWrite | kFree, pc);
    forget(c);
  });
}

void memory_benign(uintptr_t address, size_t size) {
  Guard guard;
  if (!guard || !memory_explored()) return;
  for (uintptr_t granule = address & ~(kGranule - 1); granule < address + size; granule += kGranule)
    if (Cell* c = cell_of(granule, true)) c->benign = true;
}

void memory_ignore(int more) {
  Guard guard;
  if (Thread* t = guard && memory_explored() ? this_thread() : nullptr) t->ignored += more;
}

}  // namespace fiberthread
