// SPDX-License-Identifier: MIT
// Waiting for signals: sigsuspend and its kin, the sigwait family.
#include <errno.h>
#include <time.h>

#include "sched/worker.h"
#include "shim/cancel.h"
#include "shim/export.h"
#include "shim/posix_timer.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/signal_parts.h"
#include "shim/time.h"

namespace fiberthread {
namespace signals {
namespace {

const std::atomic<uint32_t> never{0};

void begin_busy() {
  tls_busy = tls_busy + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}
void end_busy() {
  Busy leave;
  tls_busy = tls_busy - 1;
}

// Takes a wanted signal that is pending for the fiber or the process, or in the kernel for this thread or all threads.
bool take_wanted(FiberRecord* me, uint64_t wanted, siginfo_t* got) {
  if (take_any(me, wanted, got)) return true;
  timespec at_once{};
  while (raw_syscall(SYS_rt_sigtimedwait, arg(&wanted), arg(got), arg(&at_once), 8) > 0) {
    if (is_poke(*got)) continue;
    TimerTarget target(*got);
    if (target.gone()) continue;
    if (!target.fiber() || target.fiber() == me) {
      timer_signal_is_got(*got);
      return true;
    }
    signal_send(target.fiber(), got->si_signo, got);
  }
  return false;
}

// Makes a system call that waits with another mask.
template <class Call>
long masked_wait(FiberRecord* me, uint64_t mask, Call call) {
  test_cancel();
  uint64_t old = signal_begin_mask(me, mask, MaskedWait::InKernel);
  // Blocks everything until the call lets in what its mask does. Otherwise a signal between this look and the call would only be recorded.
  me->run.worker->run.kernel_mask = ~kTrapMask;
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&me->run.worker->run.kernel_mask), 0, 8);
  long r = pending_for(me, ~mask_of(me)) || cancel_pending(me) ? -EINTR : call();
  signal_end_mask(me, old, r == -EINTR);
  if (r == -EINTR) test_cancel();
  return r;
}

}  // namespace
}  // namespace signals

using namespace signals;

uint64_t signal_begin_mask(FiberRecord* me, uint64_t mask, MaskedWait wait) {
  uint64_t old = mask_of(me);
  begin_busy();
  set_mask_of(me, mask & ~kNeverBlocked);
  give_away(me, mask & ~old);
  if (old & ~mask) main_lets_in(me, ~mask);
  if (wait != MaskedWait::Parks || !(old & ~mask)) return old;
  sched_apply_mask();  // what the kernel keeps for us comes now, and is recorded
  kept_have_come(me);
  await_taken(old & ~mask);
  unblocked_beside_main(mask);
  if (pending_for(me, ~mask_of(me))) me->run.interrupts.fetch_or(kInterruptSafePoint, std::memory_order_seq_cst);
  return old;
}

bool signal_end_mask(FiberRecord* me, uint64_t old, bool interrupted) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  siginfo_t info;
  bool ran = false;
  uint64_t blocked = old & ~mask_of(me);
  main_lets_in(me, 0);
  // As in the kernel: a signal that only the other mask lets in runs if it has ended the call. Otherwise it stays pending.
  while (interrupted && !ran && take_any(me, ~mask_of(me), &info)) ran = run_as_call(me, &info, old) != Ran::No;
  // The kernel has gone back to the old mask by itself, or a default action that ran has set the other one.
  if (!ran) restore_mask(me, old);
  end_busy();
  await_unwanted(blocked);
  run_unblocked(me);
  return ran;
}

bool signal_mask_is_ours() { return ours(); }

bool signal_is_pending(FiberRecord* me) {
  me->run.interrupts.fetch_and(~uint32_t{kInterruptSafePoint}, std::memory_order_seq_cst);
  if (!pending_for(me, ~mask_of(me))) return false;
  me->run.interrupts.fetch_or(kInterruptSafePoint, std::memory_order_relaxed);
  return true;
}

long signal_masked_call(uint64_t mask, long number, long a, long b, long c, long d, long e, long f) {
  return masked_wait(self(), mask, [&] { return raw_syscall(number, a, b, c, d, e, f); });
}

}  // namespace fiberthread

using namespace fiberthread;
using namespace fiberthread::signals;

FIBERTHREAD_EXPORT int sigsuspend(const sigset_t* set) {
  FiberRecord* me = ours();
  if (!me) return REAL(sigsuspend)(set);
  test_cancel();
  uint64_t old = mask_of(me), mask = words(*set) & ~kNeverBlocked;
  begin_busy();
  set_mask_of(me, mask);
  sched_apply_mask();  // what the kernel keeps for us comes now, and is recorded
  kept_have_come(me);
  give_away(me, mask & ~old);
  unblocked_beside_main(mask);
  bool ran = false;
  while (!ran) {
    clear_pending_unpark(me);
    me->run.interrupts.fetch_and(~uint32_t{kInterruptSafePoint}, std::memory_order_seq_cst);
    siginfo_t info;
    if (take_any(me, ~mask, &info)) {
      ran = run_as_call(me, &info, old) != Ran::No;
      continue;
    }
    if (me->run.interrupts.load(std::memory_order_seq_cst) & wait_interrupts(me)) break;
    main_lets_in(me, ~mask);
    park_if(&never, 0, {"signal"});
    main_lets_in(me, 0);  // at once: a handler may leave this call by a jump
  }
  if (!ran) restore_mask(me, old);
  end_busy();
  await_unwanted(old & ~mask);
  run_unblocked(me);  // signals that were recorded while the handler blocked them
  test_cancel();
  return static_cast<int>(with_errno(!ran && end_pending(me) ? -ECANCELED : -EINTR));
}

FIBERTHREAD_EXPORT int pause() {
  FiberRecord* me = ours();
  if (!me) return REAL(pause)();
  sigset_t set = as_set(mask_of(me));
  return sigsuspend(&set);
}

// XSI's sigpause takes a signal. Headers give it the name __xpg_sigpause.
FIBERTHREAD_EXPORT int sigpause(int sig) {
  sigset_t set;
  sigprocmask(SIG_BLOCK, nullptr, &set);
  if (sigdelset(&set, sig) != 0) return -1;
  return sigsuspend(&set);
}
// BSD's sigpause, with the plain name, takes a mask.
FIBERTHREAD_EXPORT int sigpause_mask(int mask) __asm__("sigpause");
FIBERTHREAD_EXPORT int sigpause_mask(int mask) {
  sigset_t set = as_set(static_cast<unsigned>(mask));
  return sigsuspend(&set);
}

FIBERTHREAD_EXPORT int sigtimedwait(const sigset_t* set, siginfo_t* info, const timespec* timeout) {
  FiberRecord* me = ours();
  if (!me) {
    int sig = REAL(sigtimedwait)(set, info, timeout);
    if (__builtin_expect(exploring, 0) && sig < 0 && errno == EAGAIN && timeout) explore_waited(*timeout);
    return sig;
  }
  uint64_t wanted = words(*set) & ~kNeverBlocked, deadline = kNever;
  if (timeout) {
    if (!valid(*timeout) || timeout->tv_sec < 0) return static_cast<int>(with_errno(-EINVAL));
    deadline = deadline_in(*timeout);
  }
  test_cancel();
  ThreadSignals& s = state_of(me);
  siginfo_t got;
  long r = 0;
  begin_busy();
  SigWaiter waiter{nullptr, me, wanted};
  bool listed = false, at_once = timeout && timeout->tv_sec == 0 && timeout->tv_nsec == 0;
  while (!r) {
    clear_pending_unpark(me);
    if (take_wanted(me, wanted, &got)) {
      r = got.si_signo;
    } else if (me->run.interrupts.load(std::memory_order_seq_cst) & kInterruptSafePoint) {
      // The bit may stand for a signal that has been taken since.
      me->run.interrupts.fetch_and(~uint32_t{kInterruptSafePoint}, std::memory_order_seq_cst);
      if (pending_for(me, ~mask_of(me))) r = -EINTR;
    } else if (me->run.interrupts.load(std::memory_order_seq_cst) & wait_interrupts(me)) {
      r = -ECANCELED;
    } else if (at_once || passed(me, deadline)) {
      r = -EAGAIN;
    } else if (!listed) {
      // Stored before the next look: a thread that sends a signal afterwards wakes us.
      listed = true;
      s.waited_for.exchange(wanted, std::memory_order_seq_cst);
      if (me == main_fiber) catch_by_default(wanted & ~kIgnoredByDefault);
      add_waiter(waiter);
      listen_for(wanted);
    } else {
      if (sched_takes_signals(me)) catch_by_default(wanted);
      main_lets_in(me, wanted);
      park_if(&never, 0, {"sigwait"}, deadline);
      main_lets_in(me, 0);
    }
  }
  if (listed) {
    s.waited_for.exchange(0, std::memory_order_seq_cst);  // before the look: a thread that gives us a signal looks at it afterwards
    remove_waiter(waiter);
    // A thread may have chosen us for a signal meanwhile.
    if (r < 0 && take_any(me, wanted, &got)) r = got.si_signo;
    give_away(me, wanted);
  }
  if (r == -EINTR) me->run.interrupts.fetch_or(kInterruptSafePoint, std::memory_order_relaxed);
  end_busy();  // this runs handlers
  if (listed) await_unwanted(wanted & mask_of(me));
  if (r == -ECANCELED) {
    test_cancel();
    if (!end_pending(me)) r = -EINTR;
  }
  if (r > 0 && info) {
    *info = got;
    if (info->si_code == SI_TKILL) info->si_code = SI_USER;  // as libc's
  }
  return static_cast<int>(with_errno(r));
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
