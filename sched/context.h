// The context switch: what is saved, and where. The code is in context_<arch>.S.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fiberthread {

struct Context {
  void* sp = nullptr;  // the saved frame, drawn in context_<arch>.S
  void* tp = nullptr;  // thread pointer
};
// What is at Context::sp; drawn in context_<arch>.S.
#if defined(__x86_64__)
struct SavedFrame {
  uint32_t mxcsr;
  uint16_t x87;
  uint16_t unused;
  uint64_t r15, r14, r13, r12, rbx, rbp, rip;
};
static_assert(offsetof(SavedFrame, mxcsr) == 0 && offsetof(SavedFrame, x87) == 4 && offsetof(SavedFrame, r15) == 8 &&
                  offsetof(SavedFrame, r14) == 16 && offsetof(SavedFrame, r13) == 24 && offsetof(SavedFrame, r12) == 32 &&
                  offsetof(SavedFrame, rbx) == 40 && offsetof(SavedFrame, rbp) == 48 && offsetof(SavedFrame, rip) == 56 &&
                  sizeof(SavedFrame) == 64,
              "context_x86_64.S has these typed in");
#elif defined(__aarch64__)
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
              "context_aarch64.S has these typed in");
#endif

static_assert(offsetof(Context, sp) == 0 && offsetof(Context, tp) == 8, "context_<arch>.S has these typed in");

extern "C" {
// Saves the caller into *from and continues *to, thread pointer included. Returns when somebody switches back.
void fiberthread_switch(Context* from, Context* to);
// Where a new fiber begins; calls entry(arg), and ends by fiberthread_end() (life.cpp) if that returns.
void fiberthread_entry();
void fiberthread_end() __attribute__((visibility("hidden")));
// The kernel has refused a switch the thread pointer: nothing of the program can go on.
[[noreturn]] void fiberthread_no_switch() __attribute__((visibility("hidden")));
// 1 if user code may write the thread pointer itself (FSGSBASE); else the switch asks the kernel. Always 1 on AArch64.
extern int fiberthread_fsgsbase __attribute__((visibility("hidden")));
}

// fiberthread_switch() for where speed matters. It goes back by a jump; had it been called, the processor would keep a return
// address too many, and predict every return below wrongly (33 ns of a semaphore's round trip of 190).
inline __attribute__((always_inline)) void switch_context(Context* from, Context* to) {
#if defined(__x86_64__)
  asm volatile(
      "lea 1f(%%rip), %%rax\n\t"
      "push %%rax\n\t"
      ".cfi_adjust_cfa_offset 8\n\t"
      "jmp fiberthread_switch\n\t"
      ".cfi_adjust_cfa_offset -8\n\t"
      "nop\n"  // where unwinders look, one byte before the return address
      "1:"
      : "+D"(from), "+S"(to)
      :
      : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
        "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
#if defined(__AVX512F__)
        "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29",
        "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7",
#endif
        "st", "memory", "cc");
#else
  fiberthread_switch(from, to);
#endif
}

// Looks what the processor can do. Once, before anything else of this header.
void context_init();

// Lays out a first frame on the stack that ends at `stack_high` (16-byte aligned), so that switching to `c` calls
// entry(arg) with the floating-point control words of the caller.
void make_context(Context& c, char* stack_high, void* tp, void (*entry)(void*), void* arg);

void set_thread_pointer(void* tp);

#if defined(__x86_64__)
constexpr long kArchSetFs = 0x1002;  // Linux' ARCH_SET_FS, of asm/prctl.h: what a switch asks for without FSGSBASE
#endif

// False if a filter that was there before us refuses what a switch asks of the kernel.
bool may_switch();

// Has the calling thread a shadow stack, where the processor keeps return addresses a second time? A switch would leave it behind.
bool has_shadow_stack();

}  // namespace fiberthread
