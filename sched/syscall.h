// SPDX-License-Identifier: MIT
// Raw system calls: no libc function, no errno, no cancellation point, usable in worker context and signal handlers.
// Each returns what the kernel returned, so an error is a negative errno value. arch.h declares raw_syscall() itself.
#pragma once
#include <errno.h>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "sched/arch/arch.h"

namespace fiberthread {

template <class T>
inline long arg(T* p) {
  return reinterpret_cast<long>(p);
}

// Makes a system call in the program's place. If a filter traps such a call (SECCOMP_RET_TRAP), the program's handler must see it. If a
// filter traps a call of the library's own, the embedder's handler of that signal answers -ENOSYS. The embedder tells one from the other by
// is_own_syscall().
long program_syscall(long nr, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0);
bool is_own_syscall(const void* at);  // true if the instruction before `at` makes a call of the library's own

// While an OwnCalls exists, the system calls of libc on this kernel thread count as the library's own. Under Busy, or before the kernel
// thread has fibers.
class OwnCalls {
 public:
  OwnCalls() : outer_(now) { now = true; }
  ~OwnCalls() { now = outer_; }
  OwnCalls(const OwnCalls&) = delete;

 private:
  friend bool is_own_syscall(const void*);
  static thread_local constinit bool now __attribute__((tls_model("initial-exec")));
  bool outer_;
};

// Not 0 once the process probably has a filter of system calls that it has made itself: counts its calls for one, unless they have failed,
// and is raised when a call of ours was trapped.
extern std::atomic<uint32_t> filtered;
// SIGSYS. With a filter it may come at any system call, as a fault may at any instruction. So no kernel thread of ours blocks it then.
constexpr uint64_t kTrapMask = uint64_t{1} << (SIGSYS - 1);
// Returns the mask that the kernel gets for a fiber's mask.
inline uint64_t without_trap(uint64_t mask) { return filtered.load(std::memory_order_relaxed) ? mask & ~kTrapMask : mask; }

// Map private memory, and unmap it. Programs replace libc's mmap() and its kin by functions that take locks, so the library calls none of
// them. Null without memory.
inline char* map_memory(size_t size, int protection, int more_flags = 0) {
  long mem = raw_syscall(SYS_mmap, 0, static_cast<long>(size), protection, MAP_PRIVATE | MAP_ANONYMOUS | more_flags, -1, 0);
  return mem < 0 && mem > -4096 ? nullptr : reinterpret_cast<char*>(mem);
}
inline void unmap_memory(void* low, size_t size) { raw_syscall(SYS_munmap, arg(low), static_cast<long>(size)); }

// Returns how many bytes of our own memory could be copied. The kernel copies, because the pages may be unreadable, or vanish meanwhile.
uint64_t copy_own(void* to, const void* from, uint64_t size);

// Reads the start of a file, as a string. Returns false if there is none.
bool read_text(const char* path, char* text, size_t size);
// Reads a decimal number and moves `p` behind it. Returns -1 if there is none ("max", "-1").
long read_number(const char*& p);

// Sleeps while *word == expected, at most until the absolute CLOCK_MONOTONIC time `deadline_ns` (0: no limit).
// Returns 0, -EAGAIN, -EINTR or -ETIMEDOUT. With `realtime`, waits until CLOCK_REALTIME shows that same time, so setting this clock moves
// the end of the wait.
long futex_wait(const void* word, uint32_t expected, uint64_t deadline_ns = 0, bool realtime = false);
long futex_wake(const void* word, int count);

// Returns true if the aligned 8 bytes at `p` can be read. The kernel reads the mask before it finds that -1 is no way to change one.
inline bool readable(const void* p) { return raw_syscall(SYS_rt_sigprocmask, -1, arg(p), 0, 8) == -EINVAL; }

}  // namespace fiberthread
