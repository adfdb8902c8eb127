#include "sched/stack.h"

#include <errno.h>
#include <link.h>
#include <new>
#include <string.h>
#include <sys/mman.h>

#include "sched/reaper.h"
#include "sched/syscall.h"
#include "sched/tcb.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

namespace fiberthread {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGranule = 64 * 1024;  // strides are multiples: so no block's hot top straddles a page table
constexpr size_t kMaxClasses = 512, kMaxChunks = 4096;
constexpr unsigned kWarm = 1024;   // free blocks per class that keep their stack pages
constexpr unsigned kCool = 16384;  // free blocks per class that keep TCB and TLS; beyond, batches go to the reaper
constexpr unsigned kBatch = 4096;

struct Class {
  SpinLock lock;
  Fiber* free = nullptr;
  unsigned free_count = 0;  // read without the lock for a guess
  Fiber* unborn = nullptr;  // free, without TCB and memory
  uint32_t next_chunk_blocks = 64;
  int chunk = -1;  // the one that still has unborn blocks
};

struct Chunk {
  char* base;
  size_t stride;
  uint32_t blocks;
  std::atomic<uint32_t> born;
  Fiber* fibers;
};

Class classes[kMaxClasses];
Chunk chunks[kMaxChunks];
std::atomic<uint32_t> chunk_count{0};
SpinLock chunk_lock;  // after Class::lock
std::atomic<uint32_t> next_id{1u << 22};
std::atomic<bool> executable{false};
bool stale_memory = false;  // in a fork child: unborn blocks are not empty

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

void set_guard(Fiber& f, size_t size) {
  size = (size + kPage - 1) & ~(kPage - 1);
  if (size == f.guard_size) return;
  if (size < f.guard_size) remove_guard(f.block + size, f.guard_size - size);
  else if (!install_guard(f.block, size)) size = f.guard_size;
  f.guard_size = size;
}

bool add_chunk(Class& c, size_t stride) {
  SpinGuard guard(chunk_lock);
  uint32_t n = chunk_count.load(std::memory_order_relaxed);
  if (n == kMaxChunks) return false;
  uint32_t blocks = c.next_chunk_blocks;
  while (blocks > 1 && stride > (size_t{1} << 46) / blocks) blocks /= 2;
  for (; blocks; blocks /= 2) {
    size_t size = stride * blocks, records = sizeof(Fiber) * blocks;
    void* mem = mmap(nullptr, size + kGranule, protection(), MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (mem == MAP_FAILED) continue;
    void* fibers = mmap(nullptr, records, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fibers == MAP_FAILED) {
      munmap(mem, size + kGranule);
      continue;
    }
    madvise(mem, size + kGranule, MADV_NOHUGEPAGE);
    Chunk& k = chunks[n];
    k.base = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(mem) + kGranule - 1) & ~(kGranule - 1));
    k.stride = stride;
    k.blocks = blocks;
    k.born.store(0, std::memory_order_relaxed);
    k.fibers = static_cast<Fiber*>(fibers);
    chunk_count.store(n + 1, std::memory_order_release);  // publishes the chunk to block_find
    c.chunk = static_cast<int>(n);
    if (c.next_chunk_blocks < 32768) c.next_chunk_blocks *= 2;
    return true;
  }
  return false;
}

Fiber* bear(Class& c, unsigned cls, size_t stride) {
  Fiber* f;
  {
    SpinGuard guard(c.lock);
    if (c.chunk < 0 || chunks[c.chunk].born.load(std::memory_order_relaxed) == chunks[c.chunk].blocks)
      if (!add_chunk(c, stride)) return nullptr;
    Chunk& k = chunks[c.chunk];
    uint32_t i = k.born.load(std::memory_order_relaxed);
    f = new (&k.fibers[i]) Fiber;
    f->block = k.base + i * stride;
    f->block_size = stride;
    f->size_class_index = static_cast<uint16_t>(cls);
    f->state.store(State::Done, std::memory_order_relaxed);
    k.born.store(i + 1, std::memory_order_release);
  }
  return f;
}

Fiber* take_free(Class& c) {
  SpinGuard guard(c.lock);
  Fiber* f = c.free;
  if (f) {
    c.free = f->queue_next;
    c.free_count--;
  } else if ((f = c.unborn)) {
    c.unborn = f->queue_next;
  }
  return f;
}

void put_free(Class& c, Fiber* f) {
  SpinGuard guard(c.lock);
  f->queue_next = c.free;
  c.free = f;
  c.free_count++;
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

Fiber* block_get(size_t stack_size, size_t guard_size, void* user_stack) {
  size_t reserve = tcb_reserve();
  size_t own_stack = user_stack ? 0 : stack_size;
  if (own_stack > (size_t{1} << 46)) return nullptr;  // before the sums below can overflow
  unsigned cls;
  size_t stride = stride_of(own_stack + reserve, cls);
  if (cls >= kMaxClasses) return nullptr;
  Class& c = classes[cls];
  Fiber* f = take_free(c);
  if (!f && !(f = bear(c, cls, stride))) return nullptr;
  char* top = f->block + f->block_size;
  if (!f->tcb) {
    if (stale_memory) raw_syscall(SYS_madvise, arg(f->block + f->guard_size), f->block_size - f->guard_size, MADV_DONTNEED);
    if (!tcb_make(*f, top)) {
      block_unborn(f);
      return nullptr;
    }
  }
  f->user_stack = user_stack != nullptr;
  if (user_stack) {
    f->stack_low = static_cast<char*>(user_stack);
    f->stack_high = f->stack_low + stack_size;
  } else {
    set_guard(*f, guard_size);
    f->stack_high = tcb_low(top);
    f->stack_low = f->block + f->guard_size;
  }
  f->id = next_id.fetch_add(1, std::memory_order_relaxed);
  if (f->id >= (1u << 30) - 1) next_id.store(1u << 22, std::memory_order_relaxed);
  return f;
}

void block_put(Fiber* f) {
  Class& c = classes[f->size_class_index];
  if (c.free_count >= kWarm && !f->user_stack) {
    uintptr_t keep = reinterpret_cast<uintptr_t>(tcb_used_low(*f)) & ~(kPage - 1);
    uintptr_t from = reinterpret_cast<uintptr_t>(f->block) + f->guard_size;
    if (keep > from) raw_syscall(SYS_madvise, from, keep - from, MADV_DONTNEED);
  }
  put_free(c, f);
  if (__builtin_expect(c.free_count < kCool + kBatch, 1)) return;
  Fiber* batch;
  {
    SpinGuard guard(c.lock);
    if (c.free_count < kCool + kBatch) return;
    batch = c.free;
    Fiber* last = batch;
    for (unsigned i = 1; i < kBatch; i++) last = last->queue_next;
    c.free = last->queue_next;
    c.free_count -= kBatch;
    last->queue_next = nullptr;
  }
  reaper_take(batch);
}

void block_keep(Fiber* f) { put_free(classes[f->size_class_index], f); }

void block_unborn(Fiber* f) {
  Class& c = classes[f->size_class_index];
  char* low = f->block + f->guard_size;
  raw_syscall(SYS_madvise, arg(low), f->block_size - f->guard_size, MADV_DONTNEED);
  SpinGuard guard(c.lock);
  f->queue_next = c.unborn;
  c.unborn = f;
}

Fiber* block_find(const void* handle) {
  auto h = reinterpret_cast<uintptr_t>(handle);
  for (uint32_t i = chunk_count.load(std::memory_order_acquire); i-- > 0;) {
    Chunk& k = chunks[i];
    uintptr_t offset = h - reinterpret_cast<uintptr_t>(k.base);
    if (offset >= k.stride * k.blocks) continue;
    uint32_t n = static_cast<uint32_t>(offset / k.stride);
    if (n >= k.born.load(std::memory_order_acquire)) return nullptr;
    Fiber* f = &k.fibers[n];
    return f->tcb == handle ? f : nullptr;
  }
  return nullptr;
}

void block_each(bool (*visit)(Fiber*, void*), void* data) {
  uint32_t n = chunk_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t born = chunks[i].born.load(std::memory_order_acquire);
    for (uint32_t j = 0; j < born; j++)
      if (!visit(&chunks[i].fibers[j], data)) return;
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

void block_lock_for_fork() {
  for (auto& c : classes) c.lock.lock();
  chunk_lock.lock();
}

void block_unlock_after_fork(bool child, Fiber* survivor) {
  chunk_lock.unlock();
  for (auto& c : classes) c.lock.unlock();
  if (!child) return;
  // All other fibers are gone. Their TCBs left libc's list at the fork, so they are made anew when used again. Until
  // then their memory stays as it was, as that of dead threads does on NPTL: the child may look at what lies there.
  stale_memory = true;
  for (auto& c : classes) {
    c.free = c.unborn = nullptr;
    c.free_count = 0;
  }
  reaper_reset_after_fork();
  uint32_t n = chunk_count.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t born = chunks[i].born.load(std::memory_order_relaxed);
    for (uint32_t j = 0; j < born; j++) {
      Fiber* f = &chunks[i].fibers[j];
      if (f == survivor) continue;
      f->state.store(State::Done, std::memory_order_relaxed);
      f->join_lock.reset();
      f->tcb = nullptr;
      Class& c = classes[f->size_class_index];
      f->queue_next = c.unborn;
      c.unborn = f;
    }
  }
}

}  // namespace fiberthread
