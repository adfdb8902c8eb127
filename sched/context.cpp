#include "sched/context.h"

#include <cstring>
#include <sys/auxv.h>

#include "sched/syscall.h"

namespace fiberthread {
namespace {

#if defined(__x86_64__)

constexpr unsigned long kHwcap2Fsgsbase = 2;  // Linux' HWCAP2_FSGSBASE, of asm/hwcap2.h
constexpr long kArchShadowStackStatus = 0x5005;

#else

constexpr long kGetShadowStackStatus = 74;  // of prctl()

#endif

constexpr uint64_t kShadowStackOn = 1;

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
  auto* frame = reinterpret_cast<SavedFrame*>((reinterpret_cast<uintptr_t>(stack_high) & ~uintptr_t{15}) - sizeof(SavedFrame));
  *frame = SavedFrame{};
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
  else if (raw_syscall(SYS_arch_prctl, kArchSetFs, arg(tp)) != 0)
    fiberthread_no_switch();
#elif defined(__aarch64__)
  asm volatile("msr tpidr_el0, %0" ::"r"(tp) : "memory");
#endif
}

bool may_switch() {
#if defined(__x86_64__)
  void* tp;
  asm("mov %%fs:0, %0" : "=r"(tp));
  return fiberthread_fsgsbase || raw_syscall(SYS_arch_prctl, kArchSetFs, arg(tp)) == 0;
#else
  return true;
#endif
}

void fiberthread_no_switch() {
  static const char text[] = "fiberthread: a filter of system calls refuses arch_prctl(ARCH_SET_FS), which a switch of fibers is on this processor; FIBERTHREAD_NPTL=1 does without\n";
  raw_syscall(SYS_write, 2, arg(text), sizeof text - 1);
  __builtin_trap();
}

bool has_shadow_stack() {
  uint64_t status = 0;
#if defined(__x86_64__)
  long r = raw_syscall(SYS_arch_prctl, kArchShadowStackStatus, arg(&status));
#else
  long r = raw_syscall(SYS_prctl, kGetShadowStackStatus, arg(&status));
#endif
  return r == 0 && status & kShadowStackOn;
}

}  // namespace fiberthread
