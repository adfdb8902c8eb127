// SPDX-License-Identifier: MIT
// Signal masks of fibers.
#include <errno.h>
#include <setjmp.h>

#include "shim/blocking.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/signal_frame.h"
#include "shim/user_memory.h"

// Fortified programs call it. It is in no header.
extern "C" void __longjmp_chk(struct __jmp_buf_tag* env, int value) noexcept __attribute__((noreturn));

namespace fiberthread {
namespace signals {

namespace {

uint64_t new_mask(uint64_t old, int how, uint64_t set) {
  set &= ~kNeverBlocked;
  switch (how) {
    case SIG_BLOCK: return old | set;
    case SIG_UNBLOCK: return old & ~set;
    default: return set;
  }
}

}  // namespace

uint64_t followed = ~uint64_t{0};

void follow_main(FiberRecord* me, uint64_t mask) {
  if (me != main_fiber || mask == followed) return;
  __atomic_store_n(&followed, mask, __ATOMIC_SEQ_CST);
  sched_set_main_mask(mask);
}

void follow_main_anew() {
  followed = ~uint64_t{0};
  follow_main(main_fiber, mask_of(main_fiber));
}

void main_lets_in(FiberRecord* me, uint64_t signals) {
  if (me != main_fiber) return;
  sched_open_for_main(kernel_calls_us(signals & followed));
}

void change_mask(FiberRecord* me, uint64_t mask) {
  uint64_t before = mask_of(me);
  if (mask != before) {
    {
      Busy busy;
      set_mask_of(me, mask);
      sched_apply_mask();
      give_away(me, mask & ~before);
    }
    if (before & ~mask) kept_have_come(me);
    follow_main(me, mask);
    if (mask & ~before) {
      sched_await_blocked(mask & ~before);
      await_unwanted(mask & ~before);
    }
    if (me == main_fiber) blocked_by_main(mask & ~before);
    else unblocked_beside_main(mask);
    await_taken(before & ~mask);
  }
  run_unblocked(me);
}

void restore_mask(FiberRecord* me, uint64_t mask) {
  uint64_t before = mask_of(me);
  set_mask_of(me, mask);
  sched_apply_mask();
  await_taken(before & ~mask);
  follow_main(me, mask);
  if (mask & ~before && !me->run.kernel) sched_await_blocked(mask & ~before);
  give_away(me, mask & ~before);
  // Meanwhile the listener may have found that nobody wanted a signal, and would leave it in the kernel.
  if (me != main_fiber && !me->run.kernel) unblocked_beside_main(mask);
}

void run_unblocked(FiberRecord* me) {
  if (!pending_for(me, ~mask_of(me))) return;
  me->run.interrupts.fetch_or(kInterruptSafePoint, std::memory_order_relaxed);
  leave_busy_slow();
}

}  // namespace signals

using namespace signals;

// Handlers call these, and must not be the first to look them up.
void signals::look_up_jumps() {
  (void)REAL(siglongjmp);
  (void)REAL(longjmp);
  (void)REAL(_longjmp);
  (void)REAL(__longjmp_chk);
}

int signal_mask_raw(int how, const uint64_t* set, uint64_t* old) {
  FiberRecord* me = ours();
  if (!me) {
    int e = static_cast<int>(-raw_syscall(SYS_rt_sigprocmask, how, arg(set), arg(old), 8));
    if (e == 0 && set && tls_current && !(sched_started() && in_vfork_child()))
      raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, 0, arg(&tls_current->run.sigmask), 8);
    return e;
  }
  if (set && how != SIG_BLOCK && how != SIG_UNBLOCK && how != SIG_SETMASK) return EINVAL;
  uint64_t before = mask_of(me);
  uint64_t wanted = set ? *set : 0;
  if (old) *old = before;
  if (set) change_mask(me, new_mask(before, how, wanted));
  return 0;
}

uint64_t signal_pending_set(FiberRecord* me) {
  uint64_t kernel = pending_in_kernel(me);  // first, since it may hand some out
  return kernel | ((state_of(me).queue.bits.load() | process_queue.bits.load()) & mask_of(me));
}

}  // namespace fiberthread

using namespace fiberthread;
using namespace fiberthread::signals;

FIBERTHREAD_EXPORT int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  FiberRecord* me = ours();
  if (!me) {
    int e = REAL(pthread_sigmask)(how, set, old);
    if (e == 0 && set && tls_current && !(sched_started() && in_vfork_child()))
      raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, 0, arg(&tls_current->run.sigmask), 8);
    return e;
  }
  uint64_t s = 0, o = 0;
  if (set) s = words(*set);
  int e = signal_mask_raw(how, set ? &s : nullptr, &o);
  if (e == 0 && old) *old = as_set(o);
  return e;
}

FIBERTHREAD_EXPORT int sigprocmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  int e = pthread_sigmask(how, set, old);
  if (e == 0) return 0;
  errno = e;
  return -1;
}

FIBERTHREAD_EXPORT int sigblock(int mask) noexcept {
  sigset_t set = as_set(static_cast<unsigned>(mask)), old;
  return sigprocmask(SIG_BLOCK, &set, &old) == 0 ? static_cast<int>(words(old)) : -1;
}
FIBERTHREAD_EXPORT int sigsetmask(int mask) noexcept {
  sigset_t set = as_set(static_cast<unsigned>(mask)), old;
  return sigprocmask(SIG_SETMASK, &set, &old) == 0 ? static_cast<int>(words(old)) : -1;
}
FIBERTHREAD_EXPORT int sighold(int sig) noexcept {
  sigset_t set;
  sigemptyset(&set);
  return sigaddset(&set, sig) == 0 ? sigprocmask(SIG_BLOCK, &set, nullptr) : -1;
}
FIBERTHREAD_EXPORT int sigrelse(int sig) noexcept {
  sigset_t set;
  sigemptyset(&set);
  return sigaddset(&set, sig) == 0 ? sigprocmask(SIG_UNBLOCK, &set, nullptr) : -1;
}

FIBERTHREAD_EXPORT sighandler_t sigset(int sig, sighandler_t handler) noexcept {
  sigset_t set, old;
  sigemptyset(&set);
  if (sigaddset(&set, sig) != 0) return SIG_ERR;
  if (handler == SIG_HOLD) {
    struct sigaction now;
    if (sigprocmask(SIG_BLOCK, &set, &old) != 0 || sigaction(sig, nullptr, &now) != 0) return SIG_ERR;
    return sigismember(&old, sig) ? SIG_HOLD : now.sa_handler;
  }
  sighandler_t before = set_handler(sig, handler, 0);
  if (before == SIG_ERR || sigprocmask(SIG_UNBLOCK, &set, &old) != 0) return SIG_ERR;
  return sigismember(&old, sig) ? SIG_HOLD : before;
}

FIBERTHREAD_EXPORT int sigpending(sigset_t* set) noexcept {
  FiberRecord* me = ours();
  if (!me) return REAL(sigpending)(set);
  uint64_t pending = signal_pending_set(me);
  if (copy_user(reinterpret_cast<uint64_t*>(set), &pending)) return 0;  // as many bytes as the kernel writes
  errno = EFAULT;
  return -1;
}

// The jump restores a mask in the kernel, and the fiber's mask must follow it.
namespace {
void restore_saved_mask(const struct __jmp_buf_tag* env) {
  leave_disk();  // the jump may leave a call that waits for a disk
  if (FiberRecord* me = env->__mask_was_saved ? ours() : nullptr)
    change_mask(me, words(reinterpret_cast<const sigset_t&>(env->__saved_mask)) & ~kNeverBlocked);
}
}  // namespace
FIBERTHREAD_EXPORT void siglongjmp(struct __jmp_buf_tag* env, int value) noexcept {
  restore_saved_mask(env);
  REAL(siglongjmp)(env, value);
  __builtin_unreachable();
}
FIBERTHREAD_EXPORT void longjmp(struct __jmp_buf_tag* env, int value) noexcept {
  restore_saved_mask(env);
  REAL(longjmp)(env, value);
  __builtin_unreachable();
}
FIBERTHREAD_EXPORT void _longjmp(struct __jmp_buf_tag* env, int value) noexcept {
  restore_saved_mask(env);
  REAL(_longjmp)(env, value);
  __builtin_unreachable();
}
FIBERTHREAD_EXPORT void __longjmp_chk(struct __jmp_buf_tag* env, int value) noexcept {
  restore_saved_mask(env);
  // libc's refuses to jump to a lower address, except from the alternate stack. Whether that is in use it would ask the kernel.
  if (on_alternate_now()) REAL(siglongjmp)(env, value);
  REAL(__longjmp_chk)(env, value);
  __builtin_unreachable();
}
