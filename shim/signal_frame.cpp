// SPDX-License-Identifier: MIT
#include "shim/signal_frame.h"

#include <errno.h>
#include <stddef.h>

#include "sched/arch/arch.h"
#include "sched/glibc/go.h"
#include "sched/preempt.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/user_memory.h"

namespace fiberthread {
namespace signals {

namespace {

constexpr int kAutoDisarm = static_cast<int>(1u << 31);

stack_t& alternate() { return tls_current->memory.alternate; }

bool within(const stack_t& s, uintptr_t sp) {
  auto low = reinterpret_cast<uintptr_t>(s.ss_sp);
  return sp > low && sp - low <= s.ss_size;
}

// Returns true as the kernel sees it. A stack that disarms itself never counts.
bool on_alternate(uintptr_t sp) { return !(alternate().ss_flags & kAutoDisarm) && within(alternate(), sp); }

}  // namespace

uintptr_t lowest_frame(const FiberRecord* me, uintptr_t sp) {
  auto low = reinterpret_cast<uintptr_t>(me->memory.stack_low);
  if (sp > low && sp <= reinterpret_cast<uintptr_t>(me->memory.stack_high)) return low;
  // The fiber may have run out of its own stack.
  auto block = reinterpret_cast<uintptr_t>(me->memory.block);
  if (block && !me->memory.user_stack && sp > block && sp <= low) return low;
  return within(alternate(), sp) ? reinterpret_cast<uintptr_t>(alternate().ss_sp) : 0;
}

char* other_stack(const Action& a, uintptr_t sp) {
  if (!(a.flags & SA_ONSTACK) || !alternate().ss_size || on_alternate(sp)) return nullptr;
  return static_cast<char*>(alternate().ss_sp) + alternate().ss_size;
}

char* stack_of_kernel_thread(FiberRecord* me, const Action& a, uintptr_t sp) {
  if (__builtin_expect(!tcb_go_found.load(std::memory_order_relaxed), 1)) return nullptr;
  if (!(a.flags & SA_ONSTACK) || me->memory.alternate.ss_size || !me->run.bound.load(std::memory_order_relaxed)) return nullptr;
  stack_t ss = {};
  raw_syscall(SYS_sigaltstack, 0, arg(&ss));  // Go may have set its own by a system call
  return ss.ss_flags & SS_DISABLE || within(ss, sp) ? nullptr : static_cast<char*>(ss.ss_sp) + ss.ss_size;
}

stack_t alternate_now() {
  stack_t s = alternate();
  if (!s.ss_size) s.ss_flags |= SS_DISABLE;  // the fiber has never set one
  return s;
}

stack_t show_alternate() {
  stack_t s = alternate_now();
  if (s.ss_flags & kAutoDisarm) alternate() = {nullptr, SS_DISABLE, 0};
  return s;
}

void forget_alternate() {
  if (alternate().ss_size) alternate() = {nullptr, SS_DISABLE, 0};
}
bool on_alternate_now() { return tls_current && within(alternate(), reinterpret_cast<uintptr_t>(__builtin_frame_address(0))); }

int set_alternate(const stack_t& ss, uintptr_t sp) {
  if (on_alternate(sp)) return EPERM;
  int mode = ss.ss_flags & ~kAutoDisarm;
  if (mode != SS_DISABLE && mode != SS_ONSTACK && mode != 0) return EINVAL;
  if (mode == SS_DISABLE) {
    alternate() = {nullptr, ss.ss_flags, 0};
    return 0;
  }
  bool same = ss.ss_sp == alternate().ss_sp && ss.ss_size == alternate().ss_size;
  if (!same && ss.ss_size < kMinAlternate) return ENOMEM;
  alternate() = ss;
  return 0;
}

bool frame_ends_at(uintptr_t pc) {
  return pc - reinterpret_cast<uintptr_t>(&fiberthread_sigreturn) <
         reinterpret_cast<uintptr_t>(fiberthread_sigreturn_end) - reinterpret_cast<uintptr_t>(&fiberthread_sigreturn);
}

bool frame_ending(const ucontext_t* uc) { return frame_ends_at(interrupted_pc(uc)); }

void frame_end_anew(ucontext_t* uc) { set_interrupted_pc(uc, reinterpret_cast<uintptr_t>(&fiberthread_sigreturn)); }

}  // namespace signals
}  // namespace fiberthread

using namespace fiberthread;
using namespace fiberthread::signals;

FIBERTHREAD_EXPORT int sigaltstack(const stack_t* ss, stack_t* old) noexcept {
  if (!ours()) {
    if (ss && sched_started() && !in_vfork_child()) self();  // its handlers need the record
    return REAL(sigaltstack)(ss, old);
  }
  stack_t wanted, before = alternate();
  if (ss && !copy_user(&wanted, ss)) return static_cast<int>(with_errno(-EFAULT));
  auto sp = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  before.ss_flags = (before.ss_size ? (on_alternate(sp) ? SS_ONSTACK : 0) : SS_DISABLE) | (before.ss_flags & kAutoDisarm);
  if (ss)
    if (int e = set_alternate(wanted, sp)) return static_cast<int>(with_errno(-e));
  if (old && !copy_user(old, &before)) return static_cast<int>(with_errno(-EFAULT));
  return 0;
}
