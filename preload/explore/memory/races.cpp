// SPDX-License-Identifier: MIT
#include "preload/explore/memory/races.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/mman.h>

#include <initializer_list>

namespace fiberthread {
namespace {

constexpr uint32_t kMostThreads = 256;  // at a time. Of more, nothing is known
constexpr uint32_t kFirstOfPlace = 32;  // a place of code is so often a point, whatever it accesses
constexpr uint32_t kQuiet = 2000;       // so many accesses of a fiber without a point: the next is one, or a loop could wait for ever
constexpr uint32_t kLongStreak = 1000;  // after so many points of one fiber in a row, others come first
constexpr uint32_t kMostPlainPoints = 200'000;  // after so many points, plain accesses are points only as kQuiet says
constexpr uint32_t kMostPoints = 500'000;       // and atomic ones as kQuietAtomics says, or a long run would be taken for a livelock
constexpr uint32_t kQuietAtomics = 64;
constexpr size_t kHeapSizes[] = {size_t{8} << 30, size_t{1} << 28};  // address space, which may be limited
constexpr size_t kPages = 1 << 20, kPlaces = 1 << 16;
constexpr size_t kPageSize = 4096, kGranule = 8;
constexpr size_t kMostRange = 1 << 16;  // of a longer access, the first bytes are looked at

// One value for each thread. Those beyond `size` are 0.
struct Clock {
  uint32_t* at = nullptr;
  uint32_t size = 0;
};

struct Sync {
  Clock clock, readers;  // `readers`: what readers of a read-write lock have released
  uint32_t writer = 0;   // thread + 1
  Sync* next_free = nullptr;
};

struct Access {
  uint32_t clock;
  uint8_t thread, mask, kind, used;  // mask: a bit for each byte of the granule
  uintptr_t pc;
};

struct Cell {
  uint8_t first;  // thread + 1 of the first that was here
  bool foreign;   // others were here too
  bool racy;      // a race was seen
  bool benign;    // and is none
  uint32_t next;  // the next to be replaced
  Sync* sync;
  Access accesses[4];
};

enum class State : uint8_t { Free, Born, Live };
struct Thread {
  State state = State::Free;
  uint8_t id = 0;
  uintptr_t handle = 0;
  uint32_t number = 0;
  uint64_t stack_high = 0;
  Clock clock, by_reads, at_fence;  // by_reads: what an acquire fence would acquire. at_fence: the clock at the last release fence
  uint32_t quiet = 0, signals_seen = 0;
  int ignored = 0;
  uintptr_t waits_with = 0;
};

struct Page {
  uintptr_t key;  // its number + 1
  Cell* cells;
};
struct Place {
  uintptr_t pc;
  uint32_t points;
  bool racy;
};

Thread threads[kMostThreads];
uint32_t thread_count = 0;
thread_local Thread* current = nullptr;
uint32_t signals = 0;  // how many were sent
Clock signals_clock;
uint32_t points_made = 0;
bool lost = false;  // something was not noted: no race is certain any more
char* heap = nullptr;
size_t heap_size = 0, heap_used = 0;
Page* pages = nullptr;
Place* places = nullptr;
Sync* free_syncs = nullptr;

bool busy = false;
// Held where the data of this file change.
class Guard {
 public:
  Guard() : mine_(!__atomic_exchange_n(&busy, true, __ATOMIC_ACQUIRE)) {}
  ~Guard() {
    if (mine_) __atomic_store_n(&busy, false, __ATOMIC_RELEASE);
  }
  explicit operator bool() const { return mine_; }

 private:
  bool mine_;
};

// Zeroed memory, or null.
void* take(size_t n) {
  for (size_t size : kHeapSizes) {
    if (heap) break;
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) continue;
    heap = static_cast<char*>(p);
    heap_size = size;
  }
  n = (n + 15) / 16 * 16;
  if (n > heap_size - heap_used) return nullptr;
  heap_used += n;
  return heap + heap_used - n;
}

uint32_t value(const Clock& c, uint32_t thread) { return thread < c.size ? c.at[thread] : 0; }

bool grow(Clock& c, uint32_t size) {
  if (size <= c.size) return true;
  uint32_t bigger = 8;
  while (bigger < size) bigger *= 2;
  auto* at = static_cast<uint32_t*>(take(bigger * sizeof(uint32_t)));
  if (!at) {
    lost = true;
    return false;
  }
  for (uint32_t i = 0; i < c.size; i++) at[i] = c.at[i];
  c = {at, bigger};
  return true;
}

void join(Clock& to, const Clock& from) {
  uint32_t size = from.size;
  while (size && !from.at[size - 1]) size--;
  if (!grow(to, size)) return;
  for (uint32_t i = 0; i < size; i++)
    if (from.at[i] > to.at[i]) to.at[i] = from.at[i];
}

void clear(Clock& c) {
  for (uint32_t i = 0; i < c.size; i++) c.at[i] = 0;
}

// What the thread does from now on is after all that others have acquired so far.
void tick(Thread* me) {
  if (grow(me->clock, me->id + 1u)) me->clock.at[me->id]++;
}

Thread* with_handle(uintptr_t handle) {
  for (uint32_t i = 0; i < thread_count; i++)
    if (threads[i].state != State::Free && threads[i].handle == handle) return &threads[i];
  return nullptr;
}

Cell* cells_of(uintptr_t page, bool make) {
  static Page* last = nullptr;
  if (last && last->key == page + 1) return last->cells;
  if (!pages) {
    if (!make) return nullptr;
    pages = static_cast<Page*>(take(kPages * sizeof(Page)));
    if (!pages) return nullptr;
  }
  static size_t used = 0;
  size_t i = (page ^ page / kPages * 977) % kPages;  // neighbours stay so, or each look at a stack would touch as many pages
  for (; pages[i].key; i = (i + 1) % kPages)
    if (pages[i].key == page + 1) {
      last = &pages[i];
      return last->cells;
    }
  if (!make || used >= kPages / 2) return nullptr;
  auto* cells = static_cast<Cell*>(take(kPageSize / kGranule * sizeof(Cell)));
  if (!cells) return nullptr;
  used++;
  pages[i] = {page + 1, cells};
  last = &pages[i];
  return cells;
}

Cell* cell_of(uintptr_t address, bool make) {
  Cell* cells = cells_of(address / kPageSize, make);
  return cells ? &cells[address % kPageSize / kGranule] : nullptr;
}

Sync* sync_of(uintptr_t object, bool make) {
  Cell* c = cell_of(object, make);
  if (!c || (!c->sync && !make)) {
    lost |= make;
    return nullptr;
  }
  if (!c->sync) {
    c->sync = free_syncs;
    if (c->sync) free_syncs = c->sync->next_free;
    else c->sync = static_cast<Sync*>(take(sizeof(Sync)));
    lost |= !c->sync;
  }
  return c->sync;
}

void forget(Cell& c) {
  Sync* s = c.sync;
  if (s) {
    clear(s->clock);
    clear(s->readers);
    s->writer = 0;
    s->next_free = free_syncs;
    free_syncs = s;
  }
  c = {};
}

template <class F>
void for_cells(uintptr_t from, uintptr_t to, F f) {
  for (uintptr_t page = from / kPageSize; page * kPageSize < to; page++) {
    Cell* cells = cells_of(page, false);
    if (!cells) continue;
    uintptr_t low = page * kPageSize < from ? from % kPageSize / kGranule : 0;
    uintptr_t high = to - page * kPageSize < kPageSize ? (to % kPageSize + kGranule - 1) / kGranule : kPageSize / kGranule;
    for (uintptr_t i = low; i < high; i++) f(cells[i], page * kPageSize + i * kGranule);
  }
}

void begin_thread(Thread* t) {
  ExploredFiber f{};
  fiberthread_explore_fiber(&f);
  t->state = State::Live;
  t->number = f.number;
  t->stack_high = f.stack_high ? f.stack_high : getauxval(AT_RANDOM);
  // Another fiber may have had this memory, with nothing that orders the two.
  auto forgets = [](Cell& c, uintptr_t) { forget(c); };
  for_cells(f.stack_low, f.stack_high, forgets);
  for_cells(f.block_low, f.block_high, forgets);
}

// Returns the caller's thread, or null if nobody was seen to make it. At the end of a fiber its thread-local variables are set back, and then
// some more calls may come. So the next fiber there may find a value that is not its own.
Thread* me() {
  uintptr_t handle = pthread_self();
  Thread* t = current;
  if (t && t->state == State::Live && t->handle == handle) return t;
  ExploredFiber f;
  t = with_handle(handle);
  if (!t || t->state != State::Born || !fiberthread_explore_fiber(&f)) return nullptr;
  current = t;
  begin_thread(t);
  return t;
}

// What the fiber sees of others without a call of its own.
void catch_up(Thread* t) {
  if (t->signals_seen != signals) {
    t->signals_seen = signals;
    join(t->clock, signals_clock);
  }
  if (t->waits_with)
    if (Sync* s = sync_of(t->waits_with, false)) join(t->clock, s->clock);
}

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
bool is_point(Thread* t, const Cell* c, uint8_t kind, uintptr_t pc) {
  bool atomic = kind & kAtomic;
  Place* p = atomic ? nullptr : place_of(pc);
  bool wanted = atomic || (c && c->racy) || (p && (p->racy || p->points < kFirstOfPlace));
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
void point(uint8_t kind, uintptr_t address, uintptr_t pc) {
  static Thread* last = nullptr;
  static uint32_t streak = 0;
  int error = errno;
  if (last != current) streak = 0;
  last = current;
  if (++streak < kLongStreak) {
    fiberthread_explore_point(words_of(kind), address, pc, 0);
  } else {
    // It may wait in a loop for another thread, which would never run in a schedule without switches.
    streak = 0;
    fiberthread_explore_point(words_of(kind), address, pc, 1);
    memory_yields();
  }
  errno = error;
}

struct {
  uintptr_t low, high;
} modules[256];
uint32_t module_count = 0;

}  // namespace

void memory_access(uintptr_t address, size_t size, uint8_t kind, uintptr_t pc) {
  if (!memory_explored() || !size) return;
  bool at_point = false;
  if (size > kMostRange) size = kMostRange;
  {
    Guard guard;
    Thread* t = guard ? me() : nullptr;
    if (!t || t->ignored) return;
    uintptr_t here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    Cell* c = cell_of(address, false);
    // On its own stack a fiber is alone until another one was seen there.
    if (address - here < t->stack_high - here && !(kind & kAtomic) && (!c || !c->first || (c->first == t->id + 1 && !c->foreign))) return;
    at_point = is_point(t, c, kind, pc);
  }
  if (at_point) point(kind, address, pc);
  Guard guard;
  Thread* t = guard ? me() : nullptr;
  if (!t) return;
  catch_up(t);
  uintptr_t end = address + size;
  for (uintptr_t granule = address & ~(kGranule - 1); granule < end; granule += kGranule)
    if (Cell* c = cell_of(granule, true)) look(t, *c, granule, mask_of(granule, address, end), address, size, kind, pc);
}

void memory_freed(uintptr_t address, size_t size, uintptr_t pc) {
  if (!memory_explored()) return;
  bool shared = false;
  if (pc) {
    Guard guard;
    Thread* t = guard ? me() : nullptr;
    if (t && !t->ignored)
      for_cells(address, address + (size < kPageSize ? size : kPageSize),
                [&](Cell& c, uintptr_t) { shared |= c.first && (c.foreign || c.first != t->id + 1); });
  }
  if (shared) point(kWrite | kFree, address, pc);
  Guard guard;
  if (!guard) {
    lost = true;
    return;
  }
  Thread* t = me();
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
  if (Thread* t = guard && memory_explored() ? me() : nullptr) t->ignored += more;
}

namespace {
// Calls f with the caller's thread, if the order of things is of interest.
template <class F>
void ordered(F f) {
  if (!memory_explored()) return;
  Guard guard;
  if (!guard) {
    lost = true;
    return;
  }
  if (Thread* t = me()) {
    catch_up(t);
    f(t);
  }
}
}  // namespace

void order_release(uintptr_t object) {
  ordered([=](Thread* t) {
    if (Sync* s = sync_of(object, true)) join(s->clock, t->clock);
    tick(t);
  });
}

void order_acquire(uintptr_t object) {
  ordered([=](Thread* t) {
    if (Sync* s = sync_of(object, false)) join(t->clock, s->clock);
  });
}

void order_atomic(uintptr_t address, int order, bool reads, bool writes) {
  ordered([=](Thread* t) {
    bool acquires = order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE;
    bool releases = order >= __ATOMIC_RELEASE;
    Sync* s = sync_of(address, writes && (releases || t->at_fence.size));
    if (!s) return;
    if (reads) join(acquires ? t->clock : t->by_reads, s->clock);
    if (!writes) return;
    join(s->clock, releases ? t->clock : t->at_fence);
    if (releases) tick(t);
  });
}

void order_fence(int order) {
  ordered([=](Thread* t) {
    if (order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE) join(t->clock, t->by_reads);
    if (order < __ATOMIC_RELEASE) return;
    join(t->at_fence, t->clock);
    tick(t);
  });
}

void order_read_lock(uintptr_t lock) { order_acquire(lock); }

void order_write_lock(uintptr_t lock) {
  ordered([=](Thread* t) {
    Sync* s = sync_of(lock, true);
    if (!s) return;
    join(t->clock, s->clock);
    join(t->clock, s->readers);
    s->writer = t->id + 1u;
  });
}

void order_rw_unlock(uintptr_t lock) {
  ordered([=](Thread* t) {
    Sync* s = sync_of(lock, true);
    if (!s) return;
    bool wrote = s->writer == t->id + 1u;
    join(wrote ? s->clock : s->readers, t->clock);
    if (wrote) s->writer = 0;
    tick(t);
  });
}

void order_signal() {
  ordered([](Thread* t) {
    join(signals_clock, t->clock);
    signals++;
    tick(t);
  });
}

uintptr_t order_wait_begin(uintptr_t mutex) {
  uintptr_t before = 0;
  ordered([&](Thread* t) {
    before = t->waits_with;
    t->waits_with = mutex;
  });
  return before;
}

void order_wait_end(uintptr_t before) {
  ordered([=](Thread* t) { t->waits_with = before; });
}

void order_created(uintptr_t handle) {
  if (!memory_explored()) return;
  Guard guard;
  if (!guard) {
    lost = true;
    return;
  }
  if (!thread_count) {
    // The first that makes a thread. What it has done so far is before all else.
    Thread* t = &threads[thread_count++];
    t->handle = pthread_self();
    begin_thread(t);
    current = t;
    tick(t);
  }
  Thread* t = me();
  if (!t) return;
  catch_up(t);
  Thread* born = with_handle(handle);
  for (uint32_t i = 0; i < thread_count && !born; i++)
    if (threads[i].state == State::Free) born = &threads[i];
  if (!born) {
    if (thread_count == kMostThreads - 1) return;
    born = &threads[thread_count];
    born->id = static_cast<uint8_t>(thread_count++);
  }
  // It may have the number of one that has ended. Then it is taken for the same.
  uint32_t own = value(born->clock, born->id);
  clear(born->clock);
  clear(born->by_reads);
  clear(born->at_fence);
  join(born->clock, t->clock);
  if (!grow(born->clock, born->id + 1u)) return;
  born->clock.at[born->id] = own;
  tick(born);
  born->state = State::Born;
  born->handle = handle;
  born->quiet = 0;
  born->ignored = 0;
  born->waits_with = 0;
  born->signals_seen = signals;
  tick(t);
}

void* order_join(uintptr_t handle) {
  Guard guard;
  return guard && memory_explored() ? with_handle(handle) : nullptr;
}

void order_joined(void* joined) {
  auto* ended = static_cast<Thread*>(joined);
  if (!ended) return;
  ordered([=](Thread* t) {
    join(t->clock, ended->clock);
    ended->state = State::Free;
  });
}

void module_instrumented(uintptr_t pc) {
  if (module_count == sizeof modules / sizeof *modules || is_instrumented(pc)) return;
  dl_iterate_phdr(
      [](dl_phdr_info* o, size_t, void* data) {
        uintptr_t pc = *static_cast<uintptr_t*>(data), low = UINTPTR_MAX, high = 0;
        for (int i = 0; i < o->dlpi_phnum; i++) {
          auto& h = o->dlpi_phdr[i];
          if (h.p_type != PT_LOAD) continue;
          if (o->dlpi_addr + h.p_vaddr < low) low = o->dlpi_addr + h.p_vaddr;
          if (o->dlpi_addr + h.p_vaddr + h.p_memsz > high) high = o->dlpi_addr + h.p_vaddr + h.p_memsz;
        }
        if (pc < low || pc >= high) return 0;
        modules[module_count++] = {low, high};
        return 1;
      },
      &pc);
}

bool is_instrumented(uintptr_t pc) {
  for (uint32_t i = 0; i < module_count; i++)
    if (pc >= modules[i].low && pc < modules[i].high) return true;
  return false;
}

}  // namespace fiberthread
