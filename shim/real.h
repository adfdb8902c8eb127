// SPDX-License-Identifier: MIT
// libc's own functions behind the names that we took over: REAL(pthread_create)(…).
//
// Resolved at first use, without a lock (dlsym.cpp) unless a library between us and libc has no GNU hash table: then under the loader's.
// So not with a SpinLock held, not in worker context, and what a signal handler may call has to be resolved before.
#pragma once
#include <atomic>

namespace fiberthread {

void* find_real(const char* name);                               // null if there is none
void* resolve_real(const char* name, std::atomic<void*>& slot);  // ends the process then

inline void* real_symbol(const char* name, std::atomic<void*>& slot) {
  void* p = slot.load(std::memory_order_relaxed);  // code, there since the loader mapped it
  return __builtin_expect(p != nullptr, 1) ? p : resolve_real(name, slot);
}

// One for each name in all files, so that resolving it once is enough.
template <auto* kOurs>
[[gnu::visibility("hidden")]] inline constinit std::atomic<void*> real_slot{nullptr};

}  // namespace fiberthread

#define REAL(function) \
  (reinterpret_cast<decltype(&::function)>(::fiberthread::real_symbol(#function, ::fiberthread::real_slot<&::function>)))
