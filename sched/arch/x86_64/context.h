// SPDX-License-Identifier: MIT
// The frame that context.S saves, and the way into a switch. Part of sched/arch/context.h.
#pragma once

namespace fiberthread {

struct SavedFrame {
  uint32_t mxcsr;
  uint16_t x87;
  uint16_t unused;
  uint64_t gs, r15, r14, r13, r12, rbx, rbp, rip;
};
static_assert(offsetof(SavedFrame, mxcsr) == 0 && offsetof(SavedFrame, x87) == 4 && offsetof(SavedFrame, gs) == 8 &&
                  offsetof(SavedFrame, r15) == 16 && offsetof(SavedFrame, r14) == 24 && offsetof(SavedFrame, r13) == 32 &&
                  offsetof(SavedFrame, r12) == 40 && offsetof(SavedFrame, rbx) == 48 && offsetof(SavedFrame, rbp) == 56 &&
                  offsetof(SavedFrame, rip) == 64 && sizeof(SavedFrame) == 72,
              "context.S has these typed in");

// The switch comes back by a jump. If it were entered by a call, the processor would keep a return address too many, and predict every
// later return wrongly (33 ns of a semaphore's round trip of 190).
inline __attribute__((always_inline)) void switch_context(Context* from, Context* to) {
  asm volatile(
      "lea 1f(%%rip), %%rax\n\t"
      "push %%rax\n\t"
      ".cfi_adjust_cfa_offset 8\n\t"
      "jmp fiberthread_switch\n\t"
      ".cfi_adjust_cfa_offset -8\n\t"
      "nop\n"  // unwinders look up the byte before the return address
      "1:"
      : "+D"(from), "+S"(to)
      :
      : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
#if defined(__AVX512F__)
        "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29",
        "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7",
#endif
        "st", "memory", "cc");
}

constexpr long kArchSetFs = 0x1002;  // Linux' ARCH_SET_FS, of asm/prctl.h: a switch without FSGSBASE asks the kernel for it

}  // namespace fiberthread
