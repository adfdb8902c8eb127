// SPDX-License-Identifier: MIT
// Code that keeps every register of the processor busy, for the tests of preemption.
#pragma once
#include <cstdint>

struct Random {
  uint64_t x;
  uint64_t operator()() {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
  }
};

// How vector registers are filled: in full, with zero upper parts, or all zero. Zero parts are in their initial state, so the processor
// does not save them.
enum Parts : uint32_t { kFull, kLowOnly, kZero };

#if defined(__x86_64__)
#include "tests/registers_x86_64.h"
#else
#include "tests/registers_aarch64.h"
#endif
