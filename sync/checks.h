// SPDX-License-Identifier: MIT
// Misuse of objects, caught in builds with FIBERTHREAD_DEBUG_CHECKS: the program ends with a line that says what was wrong. In other
// builds the calls cost nothing.
#pragma once
#include <cstdint>

namespace fiberthread {

#ifdef FIBERTHREAD_DEBUG_CHECKS
constexpr bool kDebugChecks = true;
#else
constexpr bool kDebugChecks = false;
#endif

// What the word of a destroyed object holds then: no value that a living one has.
constexpr uint64_t kDestroyed = 0xdeadf1bedeadf1be;

[[noreturn]] void misused(const char* type, const void* object, const char* what);

inline void check(bool right, const char* type, const void* object, const char* what) {
  if (kDebugChecks && __builtin_expect(!right, 0)) misused(type, object, what);
}

}  // namespace fiberthread
