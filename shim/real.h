// SPDX-License-Identifier: MIT
// libc's own functions behind the names that we took over: REAL(pthread_create)(…).
//
// A function is looked up at its first use, without a lock (dlsym.cpp). Only if a library between us and libc has no GNU hash table does
// the look-up take the loader's lock. So REAL() must not be used with a SpinLock held or in worker context. What a signal handler may call
// is looked up beforehand.
#pragma once
#include <atomic>

namespace fiberthread {

void* find_real(const char* name);                               // null if there is none
void* resolve_real(const char* name, std::atomic<void*>& slot);  // ends the process if there is none

inline void* real_symbol(const char* name, std::atomic<void*>& slot) {
  void* p = slot.load(std::memory_order_relaxed);  // relaxed: it points to code, which is there since the loader mapped it
  return __builtin_expect(p != nullptr, 1) ? p : resolve_real(name, slot);
}

// One slot for each name in all files, so that each name is looked up once.
template <auto* kOurs>
[[gnu::visibility("hidden")]] inline constinit std::atomic<void*> real_slot{nullptr};

}  // namespace fiberthread

#define REAL(function) \
  (reinterpret_cast<decltype(&::function)>(::fiberthread::real_symbol(#function, ::fiberthread::real_slot<&::function>)))
