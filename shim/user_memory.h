// SPDX-License-Identifier: MIT
// Access to the caller's memory in calls that must answer EFAULT where it is missing, as the kernel does, and must not crash.
//
// The functions below fault like any code. The handler of SIGSEGV finds the fault in them and lets them return -EFAULT. If the caller has
// blocked SIGSEGV, the kernel ends the process instead.
#pragma once
#include <string.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>

#include "sched/arch/arch.h"

// In sched/arch/<cpu>/posix/user_memory.S. Each returns 0, or -EFAULT if the memory is missing.
extern "C" {
// Loads a word. Sequentially consistent. `from` is aligned.
long fiberthread_user_load(const uint32_t* from, uint32_t* to) __attribute__((visibility("hidden")));
// Puts `wanted` in place of `*expected`, with acquire and release, and returns 0. Returns 1 if the word is something else, which
// `*expected` then has. `word` is aligned.
long fiberthread_user_exchange(uint32_t* word, uint32_t* expected, uint32_t wanted) __attribute__((visibility("hidden")));
// Copies from the end on. `n` is a multiple of 4.
long fiberthread_user_copy(void* to, const void* from, size_t n) __attribute__((visibility("hidden")));
extern const char fiberthread_user_end[] __attribute__((visibility("hidden")));    // the end of these functions
extern const char fiberthread_user_fault[] __attribute__((visibility("hidden")));  // where they go on after a fault
}

namespace fiberthread {

template <class T>
bool copy_user(T* to, const T* from) {
  static_assert(sizeof(T) % 4 == 0);
  return fiberthread_user_copy(to, from, sizeof(T)) == 0;
}

// Copies as strncpy does. It reads aligned words, since the page behind the end of the string may be missing.
inline bool copy_user_string(char* to, const char* from, size_t n) {
  for (size_t i = 0; i < n; i++) {
    auto at = reinterpret_cast<uintptr_t>(from + i);
    uint32_t word;
    if (fiberthread_user_load(reinterpret_cast<const uint32_t*>(at & ~uintptr_t{3}), &word) != 0) return false;
    memcpy(&to[i], reinterpret_cast<char*>(&word) + at % 4, 1);
    if (to[i]) continue;
    memset(to + i, 0, n - i);
    break;
  }
  return true;
}

// Called in the handler of a fault. Returns true if one of these functions faulted, and then the interrupted code goes on.
inline bool user_memory_fault(ucontext_t* uc) {
  uintptr_t at = interrupted_pc(uc);
  if (at < reinterpret_cast<uintptr_t>(&fiberthread_user_load) || at >= reinterpret_cast<uintptr_t>(fiberthread_user_end)) return false;
  set_interrupted_pc(uc, reinterpret_cast<uintptr_t>(fiberthread_user_fault));
  return true;
}

}  // namespace fiberthread
