// SPDX-License-Identifier: MIT
#include "sched/arch/context.h"

#include <sys/auxv.h>

#include "sched/arch/x86_64/features.h"
#include "sched/syscall.h"

extern "C" {
int fiberthread_fsgsbase = 0;
// Ends the process with a message, because the kernel has refused to set the thread pointer in a switch. Called by context.S, too.
[[noreturn]] void fiberthread_no_switch() __attribute__((visibility("hidden"), used));
}

namespace fiberthread {

void context_init() {
  constexpr unsigned long kHwcap2Fsgsbase = 2;  // Linux' HWCAP2_FSGSBASE, of asm/hwcap2.h
  fiberthread_fsgsbase = (getauxval(AT_HWCAP2) & kHwcap2Fsgsbase) != 0;
}

void make_context(Context& c, char* stack_high, void* tp, void (*entry)(void*), void* arg) {
  auto* frame = reinterpret_cast<SavedFrame*>((reinterpret_cast<uintptr_t>(stack_high) & ~uintptr_t{15}) - sizeof(SavedFrame));
  *frame = SavedFrame{};
  asm volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(frame->mxcsr), "=m"(frame->x87));
  if (fiberthread_fsgsbase) asm volatile("rdgsbase %0" : "=r"(frame->gs));
  frame->rip = reinterpret_cast<uintptr_t>(fiberthread_entry);
  frame->rbx = reinterpret_cast<uintptr_t>(entry);
  frame->r12 = reinterpret_cast<uintptr_t>(arg);
  c.sp = frame;
  c.tp = tp;
}

// Not inlined: the caller must not have an address derived from the old thread pointer in a register.
__attribute__((noinline)) void set_thread_pointer(void* tp) {
  if (fiberthread_fsgsbase) asm volatile("wrfsbase %0" ::"r"(tp) : "memory");
  else if (raw_syscall(SYS_arch_prctl, kArchSetFs, arg(tp)) != 0) fiberthread_no_switch();
}

bool may_switch() {
  void* tp;
  asm("mov %%fs:0, %0" : "=r"(tp));
  return fiberthread_fsgsbase || raw_syscall(SYS_arch_prctl, kArchSetFs, arg(tp)) == 0;
}

bool has_shadow_stack() {
  constexpr long kArchShadowStackStatus = 0x5005;
  constexpr uint64_t kShadowStackOn = 1;
  uint64_t status = 0;
  return raw_syscall(SYS_arch_prctl, kArchShadowStackStatus, arg(&status)) == 0 && status & kShadowStackOn;
}

bool is_guest() {
  constexpr unsigned kHypervisor = 1u << 31;
  return features(LibcLeaf::k1, 1, 0).ecx & kHypervisor;
}

// KVM tells its guest which CPUs it has stopped (by "steal time"), and an idle one counts.
bool shuns_idle_cpus() {
  constexpr unsigned kFirst = 0x40000000, kFeatures = kFirst + 1, kStealTime = 1u << 5;
  unsigned a, b, c, d;
  __cpuid(kFirst, a, b, c, d);
  if (a < kFeatures || b != 0x4b4d564b || c != 0x564b4d56 || d != 0x4d) return false;  // "KVMKVMKVM"
  __cpuid(kFeatures, a, b, c, d);
  return a & kStealTime;
}

}  // namespace fiberthread

using namespace fiberthread;

void fiberthread_no_switch() {
  static const char text[] =
      "fiberthread: a filter of system calls refuses arch_prctl(ARCH_SET_FS), which a switch of fibers is on this processor; "
      "FIBERTHREAD_NPTL=1 does without\n";
  raw_syscall(SYS_write, 2, arg(text), sizeof text - 1);
  __builtin_trap();
}
