// SPDX-License-Identifier: MIT
// Reports of misuse. In programs that are compiled with -DFIBERTHREAD_DEBUG_CHECKS, these headers find objects that are destroyed while a
// thread waits, and waits on destroyed objects. The library need not be built with it.
#pragma once
#include <cstdint>

#include "api.h"

namespace fiberthread {

// Writes one line to stderr, "fiberthread: TYPE 0xADDRESS WHAT", and aborts the process. Any thread and signal handlers. Never parks.
[[noreturn]] FIBERTHREAD_API void report_misuse(const char* type, const void* object, const char* what);

// The word of a destroyed object. No living object has this value.
constexpr uint64_t kDestroyedWord = 0xdeadf1bedeadf1be;

}  // namespace fiberthread
