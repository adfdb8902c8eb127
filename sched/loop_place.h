// SPDX-License-Identifier: MIT
// Where a fiber was at the last ticks: does it wait in a loop?
#pragma once

#include <atomic>
#include <cstdint>

#include "sched/arch/arch.h"

namespace fiberthread {

// A fiber that waits in a loop is in the same few instructions at each tick. Its registers have few values there (what the loop looks at, and
// where), but for at most two (a count, and what it has just read). After it has done something else and come back, registers that the loop
// does not use have other values, also from few. A loop that computes has more variables.
//
// Written in the handler of a tick, by the worker that runs the fiber.
struct LoopPlace {
  static constexpr uintptr_t kFewInstructions = 64;  // bytes of code
  static constexpr int kFewChanges = 2;
  static constexpr uint32_t kMost = 16, kEnough = 4;

  uint32_t values[kLoopRegisters] = {};  // for each register, the last four values that differed: a byte of hash each
  uintptr_t pc = 0, sp = 0;
  // Ticks at which it was in the same loop as at the one before, less those at which it was not. Relaxed: others only look whether it is high.
  std::atomic<uint32_t> waits{0};

  // Returns true if the fiber probably waits in a loop. From any thread.
  bool probably_waits() const { return waits.load(std::memory_order_relaxed) >= kEnough; }

  // The fiber was seen at a pause, so it waits, whatever its registers are.
  void waits_here() {
    if (waits.load(std::memory_order_relaxed) < kEnough) waits.store(kEnough, std::memory_order_relaxed);
  }

  // `read(i)` returns register i.
  template <typename Read>
  void note(uintptr_t new_pc, uintptr_t new_sp, Read read) {
    constexpr uint32_t kOnes = 0x01010101;
    int changes = 0;
    for (unsigned i = 0; i < kLoopRegisters; i++) {
      auto hash = static_cast<uint8_t>(read(i) * 0x9e3779b97f4a7c15 >> 56);
      uint32_t other = values[i] ^ hash * kOnes;  // a byte is 0 where it is that hash
      if ((other - kOnes) & ~other & kOnes << 7) continue;
      values[i] = values[i] << 8 | hash;
      changes++;
    }
    bool same = new_sp == sp && (new_pc > pc ? new_pc - pc : pc - new_pc) < kFewInstructions && changes <= kFewChanges;
    uint32_t n = waits.load(std::memory_order_relaxed);
    if (same ? n < kMost : n > 0) waits.store(same ? n + 1 : n - 1, std::memory_order_relaxed);
    pc = new_pc;
    sp = new_sp;
  }
};

}  // namespace fiberthread
