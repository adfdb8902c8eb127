// SPDX-License-Identifier: MIT
// Raw system calls: no libc function, no errno, no cancellation point, usable in worker context and signal handlers.
// Each returns what the kernel returned, so an error is a negative errno value. raw_syscall() itself is the processor's, of arch.h.
#pragma once
#include <errno.h>
#include <atomic>
#include <cstdint>
#include <sys/syscall.h>

#include "sched/arch/arch.h"

namespace fiberthread {

template <class T>
inline long arg(T* p) {
  return reinterpret_cast<long>(p);
}

// The program's call, made in its place. A filter that traps it (SECCOMP_RET_TRAP) means the program's handler. To a call of our own
// that is trapped, the embedder's handler of that signal answers -ENOSYS. It tells one from the other by is_own_syscall().
long program_syscall(long nr, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0);
bool is_own_syscall(const void* at);  // made by the instruction before `at`

// While there is one, what libc does is on our behalf too. Of the kernel thread: Busy, or before it has fibers.
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

// The process has a filter of system calls that it has made itself, as far as we know. Set when it asks for one, or has trapped a call of ours.
extern std::atomic<bool> filtered;
// SIGSYS, which may come at any call then: no kernel thread of ours blocks it, and as from a fault nobody is safe from it.
constexpr uint64_t kTrapSignal = uint64_t{1} << (31 - 1);
// What the kernel gets for a fiber's mask.
inline uint64_t without_trap(uint64_t mask) { return filtered.load(std::memory_order_relaxed) ? mask & ~kTrapSignal : mask; }

// Sleeps while *word == expected, at most until the absolute CLOCK_MONOTONIC time `deadline_ns` (0: no limit).
// Returns 0, -EAGAIN, -EINTR or -ETIMEDOUT. `realtime`: the time is waited for as what CLOCK_REALTIME shows then, so that a
// clock that is set moves it.
long futex_wait(const void* word, uint32_t expected, uint64_t deadline_ns = 0, bool realtime = false);
long futex_wake(const void* word, int count);

// A word of 8 bytes, aligned. The kernel reads the set before it finds that there is no such way to change a mask.
inline bool readable(const void* p) { return raw_syscall(SYS_rt_sigprocmask, -1, arg(p), 0, 8) == -EINVAL; }

}  // namespace fiberthread
