// SPDX-License-Identifier: MIT
// Pages, and the guards of stacks.
#pragma once
#include <sys/auxv.h>

#include <atomic>
#include <cstddef>

namespace fiberthread {

inline std::atomic<size_t> known_page_size{0};

// Returns the kernel's, which is 4, 16 or 64 kB.
inline size_t page_size() {
  size_t size = known_page_size.load(std::memory_order_relaxed);
  if (__builtin_expect(!size, 0)) known_page_size.store(size = getauxval(AT_PAGESZ), std::memory_order_relaxed);
  return size;
}

// The guard of a thread that asks for these bytes, which are whole pages. It has 64 kB at least, as in NPTL: functions with large frames look at
// their stack once in 64 kB (-fstack-clash-protection).
constexpr bool kGuardsGrow = true;
constexpr size_t guard_for(size_t asked) { return asked && asked < 64 * 1024 ? 64 * 1024 : asked; }

}  // namespace fiberthread
