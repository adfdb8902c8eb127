// SPDX-License-Identifier: MIT
// Checks for misuse of objects in builds with FIBERTHREAD_DEBUG_CHECKS. A check that fails ends the program with a line that says what was
// wrong. In other builds the checks cost nothing.
#pragma once
#include <cstdint>

namespace fiberthread {

#ifdef FIBERTHREAD_DEBUG_CHECKS
constexpr bool kDebugChecks = true;
#else
constexpr bool kDebugChecks = false;
#endif

// The word of a destroyed object. No living object has this value.
constexpr uint64_t kDestroyed = 0xdeadf1bedeadf1be;

// Writes "fiberthread: TYPE 0xADDRESS WHAT" to stderr and aborts. Any context.
[[noreturn]] void misused(const char* type, const void* object, const char* what);

inline void check(bool right, const char* type, const void* object, const char* what) {
  if (kDebugChecks && __builtin_expect(!right, 0)) misused(type, object, what);
}

}  // namespace fiberthread
