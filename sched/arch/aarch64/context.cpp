// SPDX-License-Identifier: MIT
#include "sched/arch/context.h"

#include "sched/syscall.h"

extern "C" {
int fiberthread_fsgsbase = 0;
}

namespace fiberthread {

void context_init() { fiberthread_fsgsbase = 1; }

void make_context(Context& c, char* stack_high, void* tp, void (*entry)(void*), void* arg) {
  auto* frame = reinterpret_cast<SavedFrame*>((reinterpret_cast<uintptr_t>(stack_high) & ~uintptr_t{15}) - sizeof(SavedFrame));
  *frame = SavedFrame{};
  asm volatile("mrs %0, fpcr" : "=r"(frame->fpcr));
  frame->x30 = reinterpret_cast<uintptr_t>(fiberthread_entry);
  frame->x19 = reinterpret_cast<uintptr_t>(entry);
  frame->x20 = reinterpret_cast<uintptr_t>(arg);
  c.sp = frame;
  c.tp = tp;
}

// Not inlined: the caller must not have an address derived from the old thread pointer in a register.
__attribute__((noinline)) void set_thread_pointer(void* tp) { asm volatile("msr tpidr_el0, %0" ::"r"(tp) : "memory"); }

bool may_switch() { return true; }

bool has_shadow_stack() {
  constexpr long kGetShadowStackStatus = 74;  // of prctl()
  constexpr uint64_t kShadowStackOn = 1;
  uint64_t status = 0;
  return raw_syscall(SYS_prctl, kGetShadowStackStatus, arg(&status)) == 0 && status & kShadowStackOn;
}

bool is_guest() { return false; }
bool shuns_idle_cpus() { return false; }

}  // namespace fiberthread
