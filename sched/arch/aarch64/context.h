// SPDX-License-Identifier: MIT
// The frame that context.S saves, and the way into a switch. Part of sched/arch/context.h.
#pragma once

namespace fiberthread {

struct SavedFrame {
  uint64_t x19, x20, x21, x22, x23, x24, x25, x26, x27, x28, x29, x30;
  uint64_t d8, d9, d10, d11, d12, d13, d14, d15;
  uint64_t fpcr;
  uint64_t unused;
};
static_assert(offsetof(SavedFrame, x19) == 0 && offsetof(SavedFrame, x20) == 8 && offsetof(SavedFrame, x21) == 16 &&
                  offsetof(SavedFrame, x23) == 32 && offsetof(SavedFrame, x25) == 48 && offsetof(SavedFrame, x27) == 64 &&
                  offsetof(SavedFrame, x29) == 80 && offsetof(SavedFrame, x30) == 88 && offsetof(SavedFrame, d8) == 96 &&
                  offsetof(SavedFrame, d10) == 112 && offsetof(SavedFrame, d12) == 128 && offsetof(SavedFrame, d14) == 144 &&
                  offsetof(SavedFrame, fpcr) == 160 && sizeof(SavedFrame) == 176,
              "context.S has these typed in");

inline __attribute__((always_inline)) void switch_context(Context* from, Context* to) { fiberthread_switch(from, to); }

}  // namespace fiberthread
