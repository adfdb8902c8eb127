// SPDX-License-Identifier: MIT
// Checks for misuse of objects in builds with FIBERTHREAD_DEBUG_CHECKS. A check that fails ends the program with a line that says what was
// wrong. In other builds the checks cost nothing.
#pragma once
#include "fiberthread/misuse.h"

namespace fiberthread {

#ifdef FIBERTHREAD_DEBUG_CHECKS
constexpr bool kDebugChecks = true;
#else
constexpr bool kDebugChecks = false;
#endif

inline void check(bool right, const char* type, const void* object, const char* what) {
  if (kDebugChecks && __builtin_expect(!right, 0)) report_misuse(type, object, what);
}

}  // namespace fiberthread
