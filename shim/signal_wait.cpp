// Waiting for signals: sigsuspend and its kin, the sigwait family.
#include <errno.h>
#include <time.h>

#include "shim/cancel.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/signal_parts.h"
#include "shim/time.h"

namespace fiberthread {
namespace signals {
namespace {

// A system call that waits with another mask.
template <class Call>
long masked_wait(Fiber* me, const sigset_t* set, Call call) {
  test_cancel();
  uint64_t old = signal_begin_mask(me, words(*set));
  long r = pending_for(me, ~mask_of(me)) || cancel_pending(me) ? -EINTR : call();
  signal_end_mask(me, old);
  if (r == -EINTR) test_cancel();
  return r;
}

}  // namespace
}  // namespace signals

using namespace signals;

uint64_t signal_begin_mask(Fiber* me, uint64_t set) {
  uint64_t old = mask_of(me);
  tls_busy = tls_busy + 1;
  set_mask_of(me, set);
  return old;
}

void signal_end_mask(Fiber* me, uint64_t old) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  tls_busy = tls_busy - 1;
  run_unblocked(me);
  {
    Busy busy;
    set_mask_of(me, old);
    // The kernel is back at the old mask by itself, or a handler's end has set the other one.
    sched_apply_mask();
  }
  run_unblocked(me);
}

bool signal_mask_is_ours() { return ours(); }

bool signal_is_pending(Fiber* me) {
  me->interrupts.fetch_and(~uint32_t{kInterruptSignal}, std::memory_order_seq_cst);
  if (!pending_for(me, ~mask_of(me))) return false;
  me->interrupts.fetch_or(kInterruptSignal, std::memory_order_relaxed);
  return true;
}

long signal_masked_call(uint64_t mask, long number, long a, long b, long c, long d, long e, long f) {
  sigset_t set = as_set(mask);
  return masked_wait(self(), &set, [&] { return raw_syscall(number, a, b, c, d, e, f); });
}

}  // namespace fiberthread

using namespace fiberthread;
using namespace fiberthread::signals;

FIBERTHREAD_EXPORT int sigsuspend(const sigset_t* set) {
  Fiber* me = ours();
  if (!me) return REAL(sigsuspend)(set);
  uint64_t s = words(*set);
  return static_cast<int>(with_errno(masked_wait(me, set, [&] {
    long r;
    // Our own signals end it as well.
    do r = raw_syscall(SYS_rt_sigsuspend, arg(&s), 8);
    while (r == -EINTR && !pending_for(me, ~mask_of(me)) && !cancel_pending(me));
    return r;
  })));
}

FIBERTHREAD_EXPORT int pause() {
  Fiber* me = ours();
  if (!me) return REAL(pause)();
  sigset_t set = as_set(mask_of(me));
  return sigsuspend(&set);
}

// XSI's: takes a signal. Headers give it the name __xpg_sigpause.
FIBERTHREAD_EXPORT int sigpause(int sig) {
  sigset_t set;
  sigprocmask(SIG_BLOCK, nullptr, &set);
  if (sigdelset(&set, sig) != 0) return -1;
  return sigsuspend(&set);
}
// BSD's, of the plain name: takes a mask.
FIBERTHREAD_EXPORT int sigpause_mask(int mask) __asm__("sigpause");
FIBERTHREAD_EXPORT int sigpause_mask(int mask) {
  sigset_t set = as_set(static_cast<unsigned>(mask));
  return sigsuspend(&set);
}

// Signals for the process are waited for in the kernel, where they are; those sent to this thread are ours.
FIBERTHREAD_EXPORT int sigtimedwait(const sigset_t* set, siginfo_t* info, const timespec* timeout) {
  Fiber* me = ours();
  if (!me) return REAL(sigtimedwait)(set, info, timeout);
  uint64_t wanted = words(*set) & ~kNeverBlocked;
  ThreadSignals& s = state_of(me);
  siginfo_t got;
  uint64_t deadline = kNever;
  if (timeout) {
    if (!valid(*timeout)) return static_cast<int>(with_errno(-EINVAL));
    deadline = timeout->tv_sec < 0 ? 0 : now_ns() + static_cast<uint64_t>(timeout->tv_sec * kNsPerSec + timeout->tv_nsec);
  }
  int r;
  for (;;) {
    test_cancel();
    // Before looking: who sends afterwards interrupts us.
    s.waited_for.exchange(wanted, std::memory_order_seq_cst);
    if (take_any(me, wanted, &got)) {
      r = got.si_signo;
      break;
    }
    timespec left{};
    if (timeout) {
      uint64_t now = now_ns();
      if (deadline > now) left = {static_cast<time_t>((deadline - now) / kNsPerSec), static_cast<long>((deadline - now) % kNsPerSec)};
    }
    r = REAL(sigtimedwait)(set, &got, timeout ? &left : nullptr);
    if (r > 0 && !is_poke(got)) break;
    if (r < 0 && errno == EINTR && pending_for(me, wanted)) continue;
    if (r < 0) break;
  }
  s.waited_for.store(0, std::memory_order_relaxed);
  if (r > 0 && info) {
    *info = got;
    if (info->si_code == SI_TKILL) info->si_code = SI_USER;  // as libc's
  }
  return r;
}

FIBERTHREAD_EXPORT int sigwaitinfo(const sigset_t* set, siginfo_t* info) {
  if (!ours()) return REAL(sigwaitinfo)(set, info);
  return sigtimedwait(set, info, nullptr);
}

FIBERTHREAD_EXPORT int sigwait(const sigset_t* set, int* sig) {
  if (!ours()) return REAL(sigwait)(set, sig);
  int error = errno, r;
  do r = sigtimedwait(set, nullptr, nullptr);
  while (r < 0 && errno == EINTR);
  if (r < 0) {
    r = errno;
    errno = error;
    return r;
  }
  *sig = r;
  return 0;
}
