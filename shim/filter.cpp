// SPDX-License-Identifier: MIT
#include "shim/filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sched/arch/context.h"
#include "sched/syscall.h"

namespace fiberthread {
namespace {

// Goes before the program's own instructions, and leaves an accumulator of zero to them.
constexpr sock_filter kLetSwitchBy[] = {
#if defined(__x86_64__)
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 5),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchSetFs, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
#endif
    BPF_STMT(BPF_LD | BPF_IMM, 0),
};
constexpr size_t kMore = sizeof kLetSwitchBy / sizeof *kLetSwitchBy;

bool readable_all(const void* p, size_t n) {
  auto from = reinterpret_cast<uintptr_t>(p) & ~uintptr_t{7}, end = reinterpret_cast<uintptr_t>(p) + n;
  for (; from < end; from = (from | 4095) + 1)
    if (!readable(reinterpret_cast<void*>(from))) return false;
  return true;
}

}  // namespace

struct FilterForKernel::Extended {
  sock_fprog program;
  sock_filter code[BPF_MAXINSNS];

  // One is kept for the next time. Unmapping it takes a call that the new filter may not allow.
  static std::atomic<Extended*> spare;
};
constinit std::atomic<FilterForKernel::Extended*> FilterForKernel::Extended::spare{nullptr};

FilterForKernel::FilterForKernel(const void* program) : program_(program) {
  sock_fprog theirs;
  if (fiberthread_fsgsbase || !readable_all(program, sizeof theirs)) return;
  memcpy(&theirs, program, sizeof theirs);
  if (theirs.len == 0 || theirs.len > BPF_MAXINSNS - kMore || !readable_all(theirs.filter, theirs.len * sizeof *theirs.filter)) return;
  Extended* e = Extended::spare.exchange(nullptr, std::memory_order_acquire);
  if (!e) {
    e = reinterpret_cast<Extended*>(map_memory(sizeof *e, PROT_READ | PROT_WRITE));
    if (!e) return;
  }
  memcpy(e->code, kLetSwitchBy, sizeof kLetSwitchBy);
  memcpy(e->code + kMore, theirs.filter, theirs.len * sizeof *theirs.filter);
  e->program = {static_cast<unsigned short>(theirs.len + kMore), e->code};
  extended_ = e;
  program_ = &e->program;
}

// If two exist at the same time, one stays mapped, and unused.
FilterForKernel::~FilterForKernel() {
  if (extended_) Extended::spare.store(extended_, std::memory_order_release);
}

}  // namespace fiberthread
