// SPDX-License-Identifier: MIT
#include "sched/memory/locked.h"

#include <sys/mman.h>

#include <atomic>

#include "sched/life/fork.h"
#include "sched/memory/block.h"
#include "sched/memory/guard.h"
#include "sched/syscall.h"

namespace fiberthread {
namespace {

// What the kernel does with new memory: kNo, or how mlock2() does the same. Relaxed: a birth beside mlockall() may come before or after it.
constexpr int kNo = -1;
std::atomic<int> new_memory{kNo};

}  // namespace

int memory_lock_new(int how) {
  int before = new_memory.exchange(how < 0 ? kNo : how, std::memory_order_relaxed);
  auto forget = [](FiberRecord* f, void*) {
    __atomic_store_n(&f->memory.locked, false, __ATOMIC_RELAXED);  // what was locked may be so no more
    return true;
  };
  if (how < 0) block_each(forget, nullptr);
  return before;
}

namespace memory {

bool locks_new() { return __builtin_expect(new_memory.load(std::memory_order_relaxed) != kNo, 0); }

// The kernel counts a new mapping among what is locked before anything can be said about it. So a small one is made, and grows.
char* map_unlocked(size_t size, int protection, int more_flags) {
  if (!locks_new()) return map_memory(size, protection, more_flags);
  char* page = map_memory(page_size(), protection, more_flags);
  if (!page) return nullptr;
  unlock(page, page + page_size());
  long mem = raw_syscall(SYS_mremap, arg(page), static_cast<long>(page_size()), static_cast<long>(size), MREMAP_MAYMOVE);
  if (mem > 0 || mem < -4095) return reinterpret_cast<char*>(mem);
  unmap_memory(page, page_size());
  return nullptr;
}

bool lock_block(FiberRecord& f, char* low, char* high) {
  int how = new_memory.load(std::memory_order_relaxed);
  bool locks = how != kNo && raw_syscall(SYS_mlock2, arg(low), high - low, how) == 0;
  __atomic_store_n(&f.memory.locked, locks, __ATOMIC_RELAXED);
  return locks || how == kNo;
}

void unlock(char* low, char* high) { raw_syscall(SYS_munlock, arg(low), high - low); }

}  // namespace memory

FIBERTHREAD_IN_FORK_CHILD(Blocks, locked, [](FiberRecord* me) {  // which inherits no locks
  new_memory.store(kNo);
  me->memory.locked = false;
})

}  // namespace fiberthread
