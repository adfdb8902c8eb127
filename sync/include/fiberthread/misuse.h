// SPDX-License-Identifier: MIT
// What programs compiled with -DFIBERTHREAD_DEBUG_CHECKS have caught in these headers: objects destroyed while somebody waits, and
// waits on what has been destroyed. The library itself need not be built with it.
#pragma once
#include <cstdint>

#include "api.h"

namespace fiberthread {

// Writes one line to stderr, "fiberthread: TYPE 0xADDRESS WHAT", and aborts.
[[noreturn]] FIBERTHREAD_API void report_misuse(const char* type, const void* object, const char* what);

// What the word of a destroyed object holds then: no value that a living one has.
constexpr uint64_t kDestroyedWord = 0xdeadf1bedeadf1be;

}  // namespace fiberthread
