// SPDX-License-Identifier: MIT
#include "sched/memory/guard.h"

#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>

#include "sched/memory/block.h"
#include "sched/memory/extents.h"
#include "sched/memory/locked.h"
#include "sched/syscall.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

namespace fiberthread {

// Emulators accept any advice to madvise(). So this tries whether a guard makes the page fault.
bool memory::guards_work() {
  static const bool works = [] {
    auto size = static_cast<long>(page_size());
    void* page = map_memory(page_size(), PROT_READ | PROT_WRITE);
    if (!page) return false;
    bool ok = raw_syscall(SYS_madvise, arg(page), size, MADV_GUARD_INSTALL) == 0;
    // The kernel reads the page for us, and reports the fault.
    uint64_t mask;
    ok = ok && raw_syscall(SYS_rt_sigprocmask, 0, arg(page), arg(&mask), 8) == -EFAULT;
    unmap_memory(page, page_size());
    return ok;
  }();
  return works;
}

namespace {

std::atomic<bool> executable{false};

bool install_guard(char* low, size_t size) {
  if (memory::guards_work() && raw_syscall(SYS_madvise, arg(low), size, MADV_GUARD_INSTALL) == 0) return true;
  return raw_syscall(SYS_mprotect, arg(low), size, PROT_NONE) == 0;
}

void remove_guard(char* low, size_t size) {
  raw_syscall(SYS_mprotect, arg(low), size, memory::protection());
  raw_syscall(SYS_madvise, arg(low), size, MADV_GUARD_REMOVE);
}

int wants_exec_stack(dl_phdr_info* info, size_t, void* data) {
  bool wants = kNoStackHeaderMeansExecutable;  // for an object without the header
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_GNU_STACK) wants = info->dlpi_phdr[i].p_flags & PF_X;
  // The vdso has no such header and needs none.
  if (wants && info->dlpi_name && *info->dlpi_name && !strstr(info->dlpi_name, "vdso")) *static_cast<bool*>(data) = true;
  else if (wants && (!info->dlpi_name || !*info->dlpi_name)) *static_cast<bool*>(data) = true;  // the program itself
  return 0;
}

std::atomic<uint32_t> guards_taken{0};

// Returns how many guards may be mappings.
uint32_t most_guards() {
  static const uint32_t most = [] {
    constexpr long kLinux = 65530;
    char text[32];
    const char* p = text;
    long maps = read_text("/proc/sys/vm/max_map_count", text, sizeof text) ? read_number(p) : kLinux;
    return static_cast<uint32_t>((maps < 0 ? kLinux : maps) / 4);  // a limit is an int
  }();
  return most;
}

}  // namespace

namespace memory {

// Relaxed: only the sum counts.
bool take_guards() {
  if (guards_work()) return true;
  if (guards_taken.fetch_add(kPerExtent, std::memory_order_relaxed) + kPerExtent <= most_guards()) return true;
  guards_taken.fetch_sub(kPerExtent, std::memory_order_relaxed);
  return false;
}

void give_guards() {
  if (!guards_work()) guards_taken.fetch_sub(kPerExtent, std::memory_order_relaxed);
}

int protection() { return PROT_READ | PROT_WRITE | (executable.load(std::memory_order_relaxed) ? PROT_EXEC : 0); }

void forget_guards() { guards_taken.store(0, std::memory_order_relaxed); }

void change_guard(FiberRecord& f, char* low, size_t size) {
  // The old guard goes as a whole. If it is a mapping, this only joins mappings, and cannot fail.
  if (f.memory.guard_size) remove_guard(f.memory.guard, f.memory.guard_size);
  f.memory.guard = low;
  f.memory.locked = false;  // what was a guard may be stack now
  uint64_t bit;
  f.memory.guard_size = size && extent(extent_of(&f, bit)).guarded && install_guard(low, size) ? size : 0;
}

void drop(char* low, char* high) {
  if (low >= high || raw_syscall(SYS_madvise, arg(low), high - low, MADV_DONTNEED) == 0) return;
  // The kernel refuses to drop pages that the program has locked.
  unlock(low, high);
  raw_syscall(SYS_madvise, arg(low), high - low, MADV_DONTNEED);
}

void clear(char* low, char* high) {
  uintptr_t in_page = page_size() - 1, from = reinterpret_cast<uintptr_t>(low), to = reinterpret_cast<uintptr_t>(high);
  from = (from + in_page) & ~in_page;
  to &= ~in_page;
  if (from >= to) {
    memset(low, 0, static_cast<size_t>(high - low));
    return;
  }
  memset(low, 0, from - reinterpret_cast<uintptr_t>(low));
  drop(reinterpret_cast<char*>(from), reinterpret_cast<char*>(to));
  memset(reinterpret_cast<char*>(to), 0, reinterpret_cast<uintptr_t>(high) - to);
}

bool wipe(char* low, size_t size) {
  // Nothing is put into RAM where nothing may be read or written.
  bool locks = locks_new();
  int prot = locks ? PROT_NONE : protection();
  long r = raw_syscall(SYS_mmap, arg(low), static_cast<long>(size), prot,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK | MAP_FIXED, -1, 0);
  if (r != arg(low)) return false;
  if (locks) unlock(low, low + size);
  raw_syscall(SYS_madvise, arg(low), static_cast<long>(size), MADV_NOHUGEPAGE);
  if (protection() != prot) raw_syscall(SYS_mprotect, arg(low), static_cast<long>(size), protection());
  return true;
}

}  // namespace memory

char* map_stack(size_t size, size_t guard) {
  char* mem = memory::map_unlocked(size, PROT_READ | PROT_WRITE, MAP_NORESERVE | MAP_STACK);
  if (mem && guard) raw_syscall(SYS_mprotect, arg(mem), static_cast<long>(guard), PROT_NONE);
  return mem;
}

void stack_look_at_objects() {
  if (executable.load(std::memory_order_relaxed)) return;
  bool wants = false;
  dl_iterate_phdr(wants_exec_stack, &wants);
  if (!wants) return;
  executable.store(true, std::memory_order_relaxed);
  // Guards made by madvise stay. Guards made by mprotect are lost here: that happens only on an old kernel, with such a program.
  memory::protect_chunks(memory::protection());
}

}  // namespace fiberthread
