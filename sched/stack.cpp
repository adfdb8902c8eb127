#include "sched/stack.h"

#include <errno.h>
#include <link.h>
#include <new>
#include <string.h>
#include <sys/mman.h>

#include "sched/glibc/tcb.h"
#include "sched/life/fork.h"
#include "sched/reaper.h"
#include "sched/syscall.h"
#include "sched/worker.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace fiberthread {

std::atomic<bool> many_blocks{false};
std::atomic<uint32_t> chunk_count{0};

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGranule = 64 * 1024;  // strides are multiples
constexpr size_t kPageTable = 2 << 20;  // what one covers
constexpr size_t kMaxClasses = 512, kMaxChunks = 4096;
constexpr uint32_t kMaxBlocks = 32768, kMaxExtents = kMaxBlocks / kPerExtent;
constexpr uint32_t kHot = 1024;   // free blocks per class in the order of their last use
constexpr uint32_t kOfWorker = 32;  // free blocks that a worker keeps to itself
constexpr uint32_t kIds = 64;       // ids that a worker takes at once
constexpr uint32_t kCool = 4096;  // free blocks per class that keep their memory; the reaper takes those beyond at once
constexpr uint32_t kKeep = 64;    // those that keep it for ever
constexpr uint32_t kMany = 128;   // blocks of a class, from which on the reaper is wanted
constexpr uint32_t kAhead = 64;   // blocks that an idle worker populates ahead of a burst
constexpr uint32_t kNone = ~0u;

enum List { kWarm, kWhole, kCold, kLists, kNoList };  // some free; free but for unborn ones; only unborn ones

struct Class {
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
  int chunk = -1;  // the one that still has extents that were never opened
  uint32_t first[kLists] = {kNone, kNone, kNone}, last[kLists] = {kNone, kNone, kNone};
};

constinit Class classes[kMaxClasses];
}  // namespace
constinit Chunk chunks[kMaxChunks]{};
namespace {
SpinLock chunk_lock;  // after Class::lock
std::atomic<uint32_t> next_id{1u << 22};
std::atomic<bool> executable{false};
std::atomic<Class*> burst{nullptr};  // the class whose unborn blocks are in demand
uint32_t stale_chunks = 0;  // in a fork child: those in which unborn blocks are not empty

// An extent's number says its chunk.
Chunk& chunk_of(uint32_t id) { return chunks[id / kMaxExtents]; }
Extent& extent(uint32_t id) { return chunk_of(id).extents[id % kMaxExtents]; }
bool is_stale(uint32_t id) { return id / kMaxExtents < stale_chunks; }
FiberRecord* fiber_at(uint32_t id, uint32_t i) { return &chunk_of(id).fibers[id % kMaxExtents * kPerExtent + i]; }
Class& class_of(FiberRecord* f) { return classes[chunks[f->chunk].cls]; }
// Where the TCB of a block ends. Were it at the same place of a page in all blocks, the hot lines of all fibers would share a few
// sets of each cache: of 256 fibers and more, some would always be out of the second-level cache.
constexpr uint32_t kColours = 16;
char* top_of(FiberRecord* f) {
  auto i = static_cast<uint32_t>(f - chunks[f->chunk].fibers);
  return f->block + f->block_size - i % kColours * 64;
}
uint32_t extent_of(FiberRecord* f, uint64_t& bit) {
  uint32_t n = static_cast<uint32_t>(f - chunks[f->chunk].fibers);
  bit = uint64_t{1} << (n % kPerExtent);
  return f->chunk * kMaxExtents + n / kPerExtent;
}
uint64_t all_of(uint32_t id) {
  uint32_t n = chunk_of(id).blocks - id % kMaxExtents * kPerExtent;
  return n >= kPerExtent ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
}

List list_of(const Extent& e, uint64_t all) {
  if (!e.free) return e.unborn ? kCold : kNoList;
  return (e.free | e.unborn) == all ? kWhole : kWarm;
}

// Class::lock is held.
void change(Class& c, uint32_t id, uint64_t free, uint64_t unborn) {
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
  } else {  // filled before others, so that those get empty
    e.prev = kNone;
    e.next = c.first[after];
    (e.next == kNone ? c.last[after] : extent(e.next).prev) = id;
    c.first[after] = id;
  }
}

// Strides grow by 64 kB up to 1 MB, then by a sixteenth of a power of two.
size_t stride_of(size_t need, unsigned& cls) {
  size_t granules = (need + kGranule - 1) / kGranule;
  if (granules <= 16) {
    cls = static_cast<unsigned>(granules);
    return granules * kGranule;
  }
  unsigned shift = 63 - __builtin_clzl(granules - 1) - 3;  // 16 steps in [2^k, 2^(k+1))
  size_t step = size_t{1} << shift;
  size_t rounded = (granules + step - 1) & ~(step - 1);
  cls = 16 + shift * 16 + static_cast<unsigned>(rounded >> shift);
  return rounded * kGranule;
}

int protection() {
  return PROT_READ | PROT_WRITE | (executable.load(std::memory_order_relaxed) ? PROT_EXEC : 0);
}

// Emulators say yes to any advice; this one would have made the page fault.
bool guards_work() {
  static const bool works = [] {
    void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return false;
    bool ok = raw_syscall(SYS_madvise, arg(page), kPage, MADV_GUARD_INSTALL) == 0;
    // The kernel reads the byte for us, and reports the fault.
    uint64_t mask;
    ok = ok && raw_syscall(SYS_rt_sigprocmask, 0, arg(page), arg(&mask), 8) == -EFAULT;
    raw_syscall(SYS_munmap, arg(page), kPage);
    return ok;
  }();
  return works;
}

bool install_guard(char* low, size_t size) {
  if (size == 0) return true;
  if (guards_work() && raw_syscall(SYS_madvise, arg(low), size, MADV_GUARD_INSTALL) == 0) return true;
  return raw_syscall(SYS_mprotect, arg(low), size, PROT_NONE) == 0;
}

void remove_guard(char* low, size_t size) {
  raw_syscall(SYS_mprotect, arg(low), size, protection());
  raw_syscall(SYS_madvise, arg(low), size, MADV_GUARD_REMOVE);
}

void set_guard(FiberRecord& f, size_t size) {
  size = (size + kPage - 1) & ~(kPage - 1);
  if (size == f.guard_size) return;
  if (size < f.guard_size) remove_guard(f.block + size, f.guard_size - size);
  else if (!install_guard(f.block, size)) size = f.guard_size;
  f.guard_size = size;
}

void drop(char* low, char* high) {
  if (low < high) raw_syscall(SYS_madvise, arg(low), high - low, MADV_DONTNEED);
}

// Maps memory that is empty, page tables and guards included, in place of what is there.
bool wipe(char* low, size_t size) {
  int prot = protection();
  long r = raw_syscall(SYS_mmap, arg(low), static_cast<long>(size), prot,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK | MAP_FIXED, -1, 0);
  if (r != arg(low)) return false;
  raw_syscall(SYS_madvise, arg(low), static_cast<long>(size), MADV_NOHUGEPAGE);
  if (protection() != prot) raw_syscall(SYS_mprotect, arg(low), static_cast<long>(size), protection());
  return true;
}

bool add_chunk(Class& c, unsigned cls, size_t stride) {
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
    void* fibers = mmap(nullptr, records + sizeof(Extent) * extents, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fibers == MAP_FAILED) {
      munmap(mem, size);
      continue;
    }
    raw_syscall(SYS_madvise, arg(mem), static_cast<long>(size), MADV_NOHUGEPAGE);
    raw_syscall(SYS_madvise, arg(fibers), static_cast<long>(records), MADV_NOHUGEPAGE);
    Chunk& k = chunks[n];
    char* base = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(mem) + kGranule - 1) & ~(kGranule - 1));
    // A block's hot top and the next one's guard share a page table, unless a new one begins between them.
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

// Opens one more extent, if the chunk has one. Class::lock is held.
bool open_extent(Class& c) {
  if (c.chunk < 0) return false;
  Chunk& k = chunks[c.chunk];
  uint32_t n = k.opened.load(std::memory_order_relaxed);
  if (n == k.extent_count) return false;
  uint32_t id = static_cast<uint32_t>(c.chunk) * kMaxExtents + n;
  extent(id).clean = true;
  k.clean++;
  change(c, id, 0, all_of(id));
  k.opened.store(n + 1, std::memory_order_release);
  return true;
}

// The record of an unborn block, which the caller holds.
FiberRecord* unborn_fiber(uint32_t id, uint32_t i) {
  FiberRecord* f = fiber_at(id, i);
  Chunk& k = chunk_of(id);
  // Written before it is read: the other way a fresh page costs two faults, and an interrupt for every other CPU.
  f->block_size = k.stride;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  // With a TCB though unborn: it was just being made when the process was forked.
  if (!f->block || f->tcb) {
    new (f) FiberRecord;
    f->block_size = k.stride;
    f->chunk = static_cast<uint16_t>(id / kMaxExtents);
    f->state.store(State::Done, std::memory_order_relaxed);
    f->block = k.base + (id % kMaxExtents * kPerExtent + i) * k.stride;
  }
  return f;
}

// A block without TCB.
FiberRecord* take_unborn(Class& c, unsigned cls, size_t stride) {
  uint32_t id, i;
  {
    SpinGuard guard(c.lock);
    while ((id = c.first[kCold]) == kNone)
      if (!open_extent(c) && !add_chunk(c, cls, stride)) return nullptr;
    Extent& e = extent(id);
    uint64_t warm = e.unborn & e.warm;
    i = static_cast<uint32_t>(__builtin_ctzll(warm ? warm : e.unborn));
    uint64_t bit = uint64_t{1} << i;
    if (warm) {
      e.warm &= ~bit;
      c.ahead--;
    }
    change(c, id, 0, e.unborn & ~bit);
    if (c.unborn_taken == kMany) many_blocks.store(true, std::memory_order_relaxed);
    if (++c.unborn_taken > kAhead && c.ahead < kAhead) burst.store(&c, std::memory_order_relaxed);
  }
  return unborn_fiber(id, i);
}

void give_back_unborn(Class& c, FiberRecord* f) {
  SpinGuard guard(c.lock);
  uint64_t bit;
  uint32_t id = extent_of(f, bit);
  Extent& e = extent(id);
  change(c, id, e.free, e.unborn | bit);
}

FiberRecord* take_free(Class& c, Worker* w) {
  if (w && w->kept_count && w->kept_class == &c) {
    w->kept_count--;
    FiberRecord* f = w->kept;
    w->kept = f->queue_next;
    return f;
  }
  SpinGuard guard(c.lock);
  FiberRecord* f = c.hot;
  if (f) {
    c.hot = f->queue_next;
    c.hot_count--;
    // Some more for the next time.
    if (w && !w->kept_count) {
      w->kept_class = &c;
      w->kept = c.hot;
      FiberRecord** end = &w->kept;
      for (; *end && w->kept_count < kOfWorker / 2; end = &(*end)->queue_next) w->kept_count++;
      c.hot = *end;
      *end = nullptr;
      c.hot_count -= w->kept_count;
      c.free_count -= w->kept_count;
    }
  } else {
    uint32_t id = c.first[kWarm] != kNone ? c.first[kWarm] : c.last[kWhole];
    if (id == kNone) return nullptr;
    Extent& e = extent(id);
    f = fiber_at(id, static_cast<uint32_t>(__builtin_ctzll(e.free)));
    change(c, id, e.free & (e.free - 1), e.unborn);
  }
  if (--c.free_count < c.low_water) c.low_water = c.free_count;
  return f;
}

// Class::lock is held.
void set_free(Class& c, FiberRecord* f) {
  uint64_t bit;
  uint32_t id = extent_of(f, bit);
  Extent& e = extent(id);
  change(c, id, e.free | bit, e.unborn);
}

int wants_exec_stack(dl_phdr_info* info, size_t, void* data) {
  bool wants = true;  // an object without the header predates it
#if !defined(__x86_64__)
  wants = false;
#endif
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_GNU_STACK) wants = info->dlpi_phdr[i].p_flags & PF_X;
  // The vdso has no such header and needs none.
  if (wants && info->dlpi_name && *info->dlpi_name && !strstr(info->dlpi_name, "vdso")) *static_cast<bool*>(data) = true;
  else if (wants && (!info->dlpi_name || !*info->dlpi_name)) *static_cast<bool*>(data) = true;  // the program itself
  return 0;
}

}  // namespace

namespace {
uint32_t new_id(Worker* w) {
  if (w && w->next_id % kIds != 0) return w->next_id++;
  uint32_t id = next_id.fetch_add(kIds, std::memory_order_relaxed);
  if (id >= (1u << 30) - 2 * kIds) next_id.store(1u << 22, std::memory_order_relaxed);
  if (w) w->next_id = id + 1;
  return id;
}
}  // namespace

FiberRecord* block_get(size_t stack_size, size_t guard_size, void* user_stack) {
  size_t reserve = tcb_reserve() + (kColours - 1) * 64;
  size_t own_stack = user_stack ? 0 : stack_size;
  if (own_stack > (size_t{1} << 46)) return nullptr;  // before the sums below can overflow
  unsigned cls;
  size_t stride = stride_of(own_stack + reserve, cls);
  if (cls >= kMaxClasses) return nullptr;
  Class& c = classes[cls];
  Worker* w = this_worker();
  FiberRecord* f = take_free(c, w);
  if (!f && !(f = take_unborn(c, cls, stride))) return nullptr;
  char* top = top_of(f);
  if (__builtin_expect(!f->tcb, 0)) {
    // Mapped anew, as its guard may have been changing at the fork.
    bool stale = f->chunk < stale_chunks, empty = !stale || wipe(f->block, f->block_size);
    if (stale) f->guard_size = 0;
    if (!empty || !tcb_make(*f, top)) {
      drop(f->block + f->guard_size, f->block + f->block_size);
      give_back_unborn(c, f);
      return nullptr;
    }
    statistics.fresh.fetch_add(1, std::memory_order_relaxed);
  }
  f->user_stack = user_stack != nullptr;
  if (user_stack) {
    f->stack_low = static_cast<char*>(user_stack);
    f->stack_high = f->stack_low + stack_size;
  } else {
    set_guard(*f, guard_size);
    __atomic_store_n(&c.guard_size, guard_size, __ATOMIC_RELAXED);
    f->stack_high = tcb_low(top);
    f->stack_low = f->block + f->guard_size;
  }
  f->id = new_id(w);
  // Whoever makes one often makes another: what its birth will touch is fetched meanwhile.
  if (w && w->kept_count) {
    FiberRecord* next = w->kept;
    __builtin_prefetch(next->stack_high - 64, 1);
    __builtin_prefetch(tcb_thread_pointer(next->tcb), 1);
    __builtin_prefetch(static_cast<char*>(tcb_thread_pointer(next->tcb)) - 64, 1);
    if (FiberRecord* then = next->queue_next)
      for (size_t line = 0; line < sizeof(FiberRecord); line += 64) __builtin_prefetch(reinterpret_cast<char*>(then) + line, 1);
  }
  return f;
}

bool block_populate() {
  Class* burst_class = burst.load(std::memory_order_relaxed);
  if (__builtin_expect(!burst_class, 1)) return false;
  Class& c = *burst_class;
  uint32_t id;
  uint64_t bits = 0;
  size_t guard_size;
  {
    SpinGuard guard(c.lock);
    if ((id = c.first[kCold]) == kNone && open_extent(c)) id = c.first[kCold];
    uint64_t cold = 0;
    while (id != kNone && !(cold = extent(id).unborn & ~extent(id).warm)) {
      id = extent(id).next;
      if (id == kNone && open_extent(c)) id = c.last[kCold];
    }
    if (c.ahead >= kAhead || id == kNone || is_stale(id)) {
      burst.store(nullptr, std::memory_order_relaxed);
      return false;
    }
    for (int n = 0; n < 4 && cold; n++) {
      bits |= cold & -cold;
      cold &= cold - 1;
    }
    c.ahead += static_cast<uint32_t>(__builtin_popcountll(bits));
    change(c, id, extent(id).free, extent(id).unborn & ~bits);
    guard_size = __atomic_load_n(&c.guard_size, __ATOMIC_RELAXED);
  }
  uint64_t refused = 0;  // an old kernel, or no memory
  for (uint64_t rest = bits; rest; rest &= rest - 1) {
    FiberRecord* f = unborn_fiber(id, static_cast<uint32_t>(__builtin_ctzll(rest)));
    char* top = top_of(f);
    // What a fiber's birth and first wait need of its stack lies right below its TLS.
    char* low = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(tcb_low(top) - 1024) & ~(kPage - 1));
    if (raw_syscall(SYS_madvise, arg(low), top - low, MADV_POPULATE_WRITE) != 0) refused |= rest & -rest;
    else set_guard(*f, guard_size);
  }
  SpinGuard guard(c.lock);
  Extent& e = extent(id);
  e.warm |= bits & ~refused;
  c.ahead -= static_cast<uint32_t>(__builtin_popcountll(refused));
  change(c, id, e.free, e.unborn | bits);
  return !refused;
}

namespace {
// Class::lock is held.
void put_free(Class& c, FiberRecord* f) {
  if (c.hot_count < kHot) {
    f->queue_next = c.hot;
    c.hot = f;
    c.hot_count++;
  } else {
    set_free(c, f);
  }
  c.free_count++;
}

// f, if there is one, and what w keeps beyond `left`.
void put_free_and_kept(Class& c, FiberRecord* f, Worker* w, uint32_t left) {
  uint32_t n, before;
  {
    SpinGuard guard(c.lock);
    before = c.free_count;
    for (; w && w->kept_count > left; w->kept_count--) {
      FiberRecord* kept = w->kept;
      w->kept = kept->queue_next;
      put_free(c, kept);
    }
    if (f) put_free(c, f);
    n = c.free_count;
  }
  if (__builtin_expect(n > kKeep, 0)) reaper_poke(n > kCool && n / kPerExtent != before / kPerExtent);
}
}  // namespace

void block_put(FiberRecord* f) {
  Class& c = class_of(f);
  Worker* w = this_worker();
  if (w && (!w->kept_count || w->kept_class == &c) && w->kept_count < kOfWorker) {
    w->kept_class = &c;
    f->queue_next = w->kept_count++ ? w->kept : nullptr;
    w->kept = f;
    return;
  }
  // Half of its own go too: so there is room for the next ones, and some for those who are made.
  put_free_and_kept(c, f, w && w->kept_class == &c ? w : nullptr, kOfWorker / 2);
}

void block_put_kept(Worker* w) {
  if (w->kept_count) put_free_and_kept(*static_cast<Class*>(w->kept_class), nullptr, w, 0);
}

// ---- the reaper's side ----

unsigned block_take_idle(Idle* to, unsigned room, bool tick) {
  unsigned count = 0;
  uint32_t used = chunk_count.load(std::memory_order_acquire);
  static bool seen[kMaxClasses];
  memset(seen, 0, sizeof seen);
  for (uint32_t i = 0; i < used; i++) {
    unsigned cls = chunks[i].cls;
    if (seen[cls]) continue;
    seen[cls] = true;
    Class& c = classes[cls];
    SpinGuard guard(c.lock);
    if (tick) {
      // Those that nobody has wanted for a whole tick: half of them, in case there are waves; but halves of little take long.
      c.idle = c.low_water < 2 * kKeep ? c.low_water : c.low_water / 2;
      c.low_water = c.free_count;
    }
    uint32_t most = c.free_count > kKeep ? c.free_count - kKeep : 0, excess = c.free_count > kCool ? c.free_count - kCool : 0;
    if (excess < c.idle) excess = c.idle;
    if (excess > most) excess = most;
    uint32_t before = c.free_count;
    while (excess && count < room) {
      uint32_t id = c.first[kWhole];
      if (id == kNone) {
        if (c.hot_count > kKeep) {
          for (uint32_t n = excess; n && c.hot_count > kKeep; n--) {
            FiberRecord* f = c.hot;
            c.hot = f->queue_next;
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
      change(c, id, 0, e.unborn);
    }
    before -= c.free_count;
    c.idle -= c.idle < before ? c.idle : before;
    if (c.free_count < c.low_water) c.low_water = c.free_count;
  }
  return count;
}

bool block_any_idle() {
  uint32_t used = chunk_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; i++)
    if (__atomic_load_n(&classes[chunks[i].cls].free_count, __ATOMIC_RELAXED) > kKeep) return true;
  return false;
}

FiberRecord* block_of(const Idle& idle, unsigned i) { return fiber_at(idle.extent, i); }

void block_keep(Idle& idle, unsigned i) {
  FiberRecord* f = block_of(idle, i);
  Class& c = class_of(f);
  idle.blocks &= ~(uint64_t{1} << i);
  SpinGuard guard(c.lock);
  set_free(c, f);
  c.free_count++;
}

namespace {

// Empties extents that we hold as a whole, n of them side by side.
bool wipe_extents(uint32_t id, uint32_t n) {
  Chunk& k = chunk_of(id);
  uint32_t begin = id % kMaxExtents * kPerExtent, end = begin + n * kPerExtent;
  if (end > k.blocks) end = k.blocks;
  // The records too: as zeros they are as readable as before. First, or the child of a fork between the two would take guards to
  // be there that are not.
  drop(reinterpret_cast<char*>(&k.fibers[begin]), reinterpret_cast<char*>(&k.fibers[end]));
  return wipe(k.base + begin * k.stride, (end - begin) * k.stride);
}

// Holds the rest of an extent if nothing of it is in use.
bool hold(Class& c, uint32_t id, uint64_t ours) {
  SpinGuard guard(c.lock);
  Extent& e = extent(id);
  if (e.free || (e.unborn | ours) != all_of(id) || is_stale(id)) return false;
  change(c, id, 0, 0);
  return true;
}

void no_longer_warm(Class& c, Extent& e) {
  c.ahead -= static_cast<uint32_t>(__builtin_popcountll(e.warm));
  e.warm = 0;
}

void free_of_memory(Class& c, uint32_t id) {
  SpinGuard guard(c.lock);
  change(c, id, 0, all_of(id));
  no_longer_warm(c, extent(id));
  extent(id).clean = true;
  chunk_of(id).clean++;
}

void empty(Class& c, uint32_t id, uint64_t blocks) {
  Chunk& k = chunk_of(id);
  // Neighbours in one go, over their guards, which stay.
  for (uint64_t bits = blocks; bits;) {
    uint32_t i = static_cast<uint32_t>(__builtin_ctzll(bits)), j = i;
    while (j < kPerExtent && bits >> j & 1) j++;
    uint64_t run = (j - i == 64 ? ~uint64_t{0} : ((uint64_t{1} << (j - i)) - 1)) << i;
    char* low = k.base + (id % kMaxExtents * kPerExtent + i) * k.stride;
    drop(low + fiber_at(id, i)->guard_size, low + (j - i) * k.stride);
    bits &= ~run;
  }
  SpinGuard guard(c.lock);
  Extent& e = extent(id);
  if (e.warm & blocks) no_longer_warm(c, e);  // a whole extent that could not be wiped
  change(c, id, e.free, e.unborn | blocks);
}

// Page tables and guards that two extents share go only with both.
void wipe_chunk(Class& c, uint32_t index) {
  Chunk& k = chunks[index];
  uint32_t first = index * kMaxExtents, n;
  {
    SpinGuard guard(c.lock);
    n = k.opened.load(std::memory_order_relaxed);
    if (k.clean != n || n < 2) return;
    for (uint32_t i = 0; i < n; i++) change(c, first + i, 0, 0);
  }
  wipe_extents(first, n);
  for (uint32_t i = 0; i < n; i++) free_of_memory(c, first + i);
}

}  // namespace

void block_empty(const Idle* idle, unsigned count) {
  for (unsigned i = 0; i < count;) {
    uint32_t id = idle[i].extent, n = 0;
    Class& c = classes[chunk_of(id).cls];
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
  }
}

FiberRecord* block_find(const void* handle) {
  auto h = reinterpret_cast<uintptr_t>(handle);
  for (uint32_t i = chunk_count.load(std::memory_order_acquire); i-- > 0;) {
    Chunk& k = chunks[i];
    uintptr_t offset = h - reinterpret_cast<uintptr_t>(k.base);
    if (offset >= k.stride * k.blocks) continue;
    FiberRecord* f = &k.fibers[offset / k.stride];
    return f->tcb == handle ? f : nullptr;
  }
  return nullptr;
}

void block_each(bool (*visit)(FiberRecord*, void*), void* data) {
  uint32_t n = chunk_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++) {
    Chunk& k = chunks[i];
    uint32_t opened = k.opened.load(std::memory_order_acquire);
    for (uint32_t j = 0; j < opened; j++) {
      uint64_t all = all_of(i * kMaxExtents + j);
      if (__atomic_load_n(&k.extents[j].unborn, __ATOMIC_RELAXED) == all) continue;
      FiberRecord* f = &k.fibers[j * kPerExtent];
      for (; all; all >>= 1, f++)
        if (f->tcb && !visit(f, data)) return;
    }
  }
}

char* map_stack(size_t size, size_t guard) {
  void* mem = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (mem == MAP_FAILED) return nullptr;
  mprotect(mem, guard, PROT_NONE);
  return static_cast<char*>(mem);
}

void stack_look_at_objects() {
  if (executable.load(std::memory_order_relaxed)) return;
  bool wants = false;
  dl_iterate_phdr(wants_exec_stack, &wants);
  if (!wants) return;
  executable.store(true, std::memory_order_relaxed);
  uint32_t n = chunk_count.load(std::memory_order_acquire);
  // Guards made by madvise stay; those made by mprotect are lost here, which only an old kernel with such a program sees.
  for (uint32_t i = 0; i < n; i++) mprotect(chunks[i].base, chunks[i].stride * chunks[i].blocks, protection());
}

// A fork takes none of our locks: it waits for malloc's afterwards, and whoever has that may have been preempted, while all workers
// would spin for ours. So in the child any of this may be half changed, and nothing is taken from it but which chunks there are and
// how far they were ever used. Even of that, what was written last may be there without what was written before it, as a fork copies
// page by page while other CPUs go on; so all words are set anew that later use relies on.
FIBERTHREAD_IN_FORK_CHILD(Blocks, [](FiberRecord* survivor) {
  // All other fibers are gone. Their TCBs left libc's list at the fork, so they are made anew when used again. Until
  // then their memory stays as it was, as that of dead threads does on NPTL: the child may look at what lies there.
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
    Class& c = classes[chunks[i].cls];
    c.hot = nullptr;
    c.hot_count = c.free_count = c.low_water = c.idle = c.ahead = 0;
    for (auto& id : c.first) id = kNone;
    for (auto& id : c.last) id = kNone;
    c.chunk = static_cast<int>(i);  // of several the last
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
      // Records of which nothing is left stay untouched.
      for (uint32_t b = 0; b < kPerExtent && all >> b & 1; b++) {
        FiberRecord* f = fiber_at(id, b);
        if (f == survivor) continue;
        unborn |= uint64_t{1} << b;
        if (e.unborn == all || !f->block) continue;
        f->state.store(State::Done, std::memory_order_relaxed);
        f->bound.store(nullptr, std::memory_order_relaxed);  // its worker is the parent's
        f->valid.store(false, std::memory_order_relaxed);
        f->join_lock.reset();
        f->tcb = nullptr;
      }
      e.free = e.unborn = e.warm = 0;
      e.clean = false;
      change(classes[k.cls], id, 0, unborn);
    }
  }
})

}  // namespace fiberthread
