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

// A guard has so many bytes at least, as in NPTL: functions with large frames look at their stack once in 64 kB (-fstack-clash-protection).
constexpr size_t kLeastGuard = 64 * 1024;

}  // namespace fiberthread
