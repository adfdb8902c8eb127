#include "sched/context.h"

#include <cstring>
#include <sys/auxv.h>

#include "sched/syscall.h"

namespace fiberthread {
namespace {

// What fiberthread_switch leaves on the stack; the map is in context_<arch>.S.
#if defined(__x86_64__)

struct Frame {
  uint32_t mxcsr;
  uint16_t x87;
  uint16_t unused;
  uint64_t r15, r14, r13, r12, rbx, rbp, rip;
};
static_assert(offsetof(Frame, mxcsr) == 0 && offsetof(Frame, x87) == 4 && offsetof(Frame, r15) == 8 &&
                  offsetof(Frame, r14) == 16 && offsetof(Frame, r13) == 24 && offsetof(Frame, r12) == 32 &&
                  offsetof(Frame, rbx) == 40 && offsetof(Frame, rbp) == 48 && offsetof(Frame, rip) == 56 &&
                  sizeof(Frame) == 64,
              "context_x86_64.S has these typed in");

constexpr unsigned long kHwcap2Fsgsbase = 2;  // Linux' HWCAP2_FSGSBASE, of asm/hwcap2.h
constexpr long kArchSetFs = 0x1002;

#elif defined(__aarch64__)

struct Frame {
  uint64_t x19, x20, x21, x22, x23, x24, x25, x26, x27, x28, x29, x30;
  uint64_t d8, d9, d10, d11, d12, d13, d14, d15;
  uint64_t fpcr;
  uint64_t unused;
};
static_assert(offsetof(Frame, x19) == 0 && offsetof(Frame, x20) == 8 && offsetof(Frame, x21) == 16 &&
                  offsetof(Frame, x23) == 32 && offsetof(Frame, x25) == 48 && offsetof(Frame, x27) == 64 &&
                  offsetof(Frame, x29) == 80 && offsetof(Frame, x30) == 88 && offsetof(Frame, d8) == 96 &&
                  offsetof(Frame, d10) == 112 && offsetof(Frame, d12) == 128 && offsetof(Frame, d14) == 144 &&
                  offsetof(Frame, fpcr) == 160 && sizeof(Frame) == 176,
              "context_aarch64.S has these typed in");

#endif

}  // namespace

extern "C" {
int fiberthread_fsgsbase = 0;
}

void context_init() {
#if defined(__x86_64__)
  fiberthread_fsgsbase = (getauxval(AT_HWCAP2) & kHwcap2Fsgsbase) != 0;
#else
  fiberthread_fsgsbase = 1;
#endif
}

void make_context(Context& c, char* stack_high, void* tp, void (*entry)(void*), void* arg) {
  auto* frame = reinterpret_cast<Frame*>((reinterpret_cast<uintptr_t>(stack_high) & ~uintptr_t{15}) - sizeof(Frame));
  *frame = Frame{};
#if defined(__x86_64__)
  asm volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(frame->mxcsr), "=m"(frame->x87));
  frame->rip = reinterpret_cast<uintptr_t>(fiberthread_entry);
  frame->rbx = reinterpret_cast<uintptr_t>(entry);
  frame->r12 = reinterpret_cast<uintptr_t>(arg);
#elif defined(__aarch64__)
  asm volatile("mrs %0, fpcr" : "=r"(frame->fpcr));
  frame->x30 = reinterpret_cast<uintptr_t>(fiberthread_entry);
  frame->x19 = reinterpret_cast<uintptr_t>(entry);
  frame->x20 = reinterpret_cast<uintptr_t>(arg);
#endif
  c.sp = frame;
  c.tp = tp;
}

// Not inlined: the caller must not have an address derived from the old thread pointer in a register.
__attribute__((noinline)) void set_thread_pointer(void* tp) {
#if defined(__x86_64__)
  if (fiberthread_fsgsbase)
    asm volatile("wrfsbase %0" ::"r"(tp) : "memory");
  else
    raw_syscall(SYS_arch_prctl, kArchSetFs, arg(tp));
#elif defined(__aarch64__)
  asm volatile("msr tpidr_el0, %0" ::"r"(tp) : "memory");
#endif
}

}  // namespace fiberthread
