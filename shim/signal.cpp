// SPDX-License-Identifier: MIT
// What the program has asked for with signals, the start of all this, and the child of a fork.
#include "shim/signal.h"

#include <errno.h>
#include <string.h>

#include "sched/life/fork.h"
#include "sched/observe/dumper.h"
#include "sched/preempt.h"
#include "shim/cancel.h"
#include "shim/exec.h"
#include "shim/export.h"
#include "shim/io.h"
#include "shim/real.h"
#include "shim/signal_frame.h"

namespace fiberthread {
namespace signals {

SpinLock signals_lock;

namespace {

struct ActionCell {
  std::atomic<uint32_t> version{0};  // odd while written
  Action action;
};
ActionCell actions[kSignals + 1];
// The signals whose actions the library keeps, and for which the kernel has our own handler: none before the first thread is asked for, then
// SIGSYS, by which a filter of system calls may answer a call of ours, and all once the scheduler starts.
std::atomic<uint64_t> taken_over{0};
constexpr uint64_t kAll = ~kNeverBlocked;
std::atomic<uint64_t> interrupting{0};  // siginterrupt()

}  // namespace

int process = 0;

Action action_of(int sig) {
  ActionCell& s = actions[sig];
  for (;;) {
    uint32_t v = s.version.load(std::memory_order_acquire);
    Action a = s.action;
    std::atomic_thread_fence(std::memory_order_acquire);
    // A writer has all signals blocked, so this never waits for the thread that it has interrupted.
    if (!(v & 1) && s.version.load(std::memory_order_relaxed) == v) return a;
  }
}

namespace {

void set_action(int sig, const Action& a) {  // under SignalsGuard
  ActionCell& s = actions[sig];
  s.version.fetch_add(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  s.action = a;
  s.version.fetch_add(1, std::memory_order_release);
}

std::atomic<uint64_t> caught_by_default{0};  // written under the lock

// Tells the kernel of an action.
void install(int sig, const Action& a) {
  struct sigaction k;
  memset(&k, 0, sizeof k);
  bool by_default = a.handler == reinterpret_cast<void*>(SIG_DFL);
  bool dumps = sig == options.dump_signal;
  if (dumps) dump_signal_is_ours.store(!handled(a), std::memory_order_release);
  // Stack overflows are reported, and calls of ours may be trapped, so the kernel must call us for SIGSEGV and SIGSYS. A poke may be on its
  // way by a signal that had a handler, and must not have the default action. The action is stored already.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool poked = may_be_poked(sig) && !(bit(sig) & kIgnoredByDefault);
  bool comes_to_us = sig == SIGSEGV || sig == SIGSYS || dumps || poked || caught_by_default.load(std::memory_order_relaxed) & bit(sig);
  if (handled(a) || (by_default && comes_to_us)) {
    k.sa_sigaction = on_signal;
    k.sa_mask = as_set(~kTrapMask);  // nothing interrupts our handler; the program's own mask is set when its handler runs
    k.sa_flags = (a.flags & (SA_RESTART | SA_NOCLDSTOP | SA_NOCLDWAIT)) | SA_SIGINFO;
    k.sa_flags |= taken_over.load(std::memory_order_relaxed) == kAll ? SA_ONSTACK : a.flags & SA_ONSTACK;
    if (!handled(a)) k.sa_flags |= SA_RESTART;  // a dump ends no call
  } else {
    k.sa_handler = reinterpret_cast<sighandler_t>(a.handler);
    k.sa_flags = a.flags & (SA_NOCLDSTOP | SA_NOCLDWAIT);
  }
  REAL(sigaction)(sig, &k, nullptr);
}

}  // namespace

void catch_by_default(uint64_t bits) {
  bits &= ~caught_by_default.load(std::memory_order_relaxed) & ~kNeverBlocked;
  if (!bits) return;
  SignalsGuard guard;
  caught_by_default.fetch_or(bits, std::memory_order_relaxed);
  bits &= taken_over.load(std::memory_order_relaxed);
  for (; bits; bits &= bits - 1) {
    int sig = __builtin_ctzll(bits) + 1;
    if (Action a = action_of(sig); a.handler == reinterpret_cast<void*>(SIG_DFL)) install(sig, a);
  }
}

uint64_t kernel_calls_us(uint64_t signals) {
  uint64_t calls = 0, by_default = caught_by_default.load(std::memory_order_relaxed);
  for (; signals; signals &= signals - 1) {
    int sig = __builtin_ctzll(signals) + 1;
    Action a = action_of(sig);
    if (handled(a) || (a.handler == reinterpret_cast<void*>(SIG_DFL) && by_default & bit(sig))) calls |= bit(sig);
  }
  return calls;
}

namespace {
thread_local constinit uint32_t handlers_begun __attribute__((tls_model("initial-exec"))) = 0;
}
bool claim(int sig, Action& a) {
  a = action_of(sig);
  if (!handled(a)) return false;
  if (__builtin_expect(sig == options.dump_signal, 0)) dump_request();
  if (a.flags & SA_RESETHAND) {
    SignalsGuard guard;
    a = action_of(sig);
    if (!handled(a)) return false;
    Action reset;
    set_action(sig, reset);
    install(sig, reset);
  }
  handlers_begun = handlers_begun + 1;
  return true;
}

FiberRecord* ours() {
  if (!sched_started()) return nullptr;
  FiberRecord* me = tls_current;
  return me && !me->run.kernel && !in_vfork_child() ? me : nullptr;
}

namespace {

// ---- dumps before signals are taken over ----

void on_early_dump(int, siginfo_t*, void*) {
  int error = errno;
  dump_request();
  errno = error;
}
// Hides our own handler for dumps from the program.
void hide_dump(int sig, struct sigaction* k) {
  if (sig != options.dump_signal || k->sa_sigaction != on_early_dump) return;
  memset(k, 0, sizeof *k);
  k->sa_handler = SIG_DFL;
}

// Learns the program's action for `sig` from the kernel. Under SignalsGuard.
void read_action(int sig) {
  struct sigaction k;
  if (REAL(sigaction)(sig, nullptr, &k) != 0) return;
  Action a;
  hide_dump(sig, &k);
  a.handler = k.sa_flags & SA_SIGINFO ? reinterpret_cast<void*>(k.sa_sigaction) : reinterpret_cast<void*>(k.sa_handler);
  a.mask = words(k.sa_mask);
  a.flags = k.sa_flags;
  set_action(sig, a);
}

void take_over(uint64_t wanted) {
  if (!(wanted & ~taken_over.load(std::memory_order_acquire))) return;
  process = static_cast<int>(raw_syscall(SYS_getpid));
  SignalsGuard guard;
  uint64_t fresh = wanted & ~taken_over.load(std::memory_order_relaxed);
  if (!fresh) return;
  // First, so that sigaction() of another thread waits for the guard, and does not change what was just read.
  taken_over.fetch_or(fresh, std::memory_order_release);
  for (uint64_t bits = fresh; bits; bits &= bits - 1) read_action(__builtin_ctzll(bits) + 1);
  for (uint64_t bits = wanted; bits; bits &= bits - 1) {
    int sig = __builtin_ctzll(bits) + 1;
    Action a = action_of(sig);
    if (handled(a) || sig == SIGSEGV || sig == SIGSYS || sig == options.dump_signal ||
        caught_by_default.load(std::memory_order_relaxed) & bit(sig))
      install(sig, a);
  }
}

}  // namespace
}  // namespace signals

using namespace signals;

uint32_t signal_handlers_begun() { return signals::handlers_begun; }

bool signal_may_dump(int sig) {
  constexpr uint64_t kNot = kNeverBlocked | bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGSYS) |
                            bit(SIGABRT);
  return sig > 0 && sig <= kSignals && !(kNot & bit(sig));
}

void signal_dump_init() {
  kernel_handler before{};
  raw_syscall(SYS_rt_sigaction, options.dump_signal, 0, arg(&before), sizeof before.mask);
  if (before.handler) return;  // ignored
  install_kernel_handler(options.dump_signal, on_early_dump);
  dump_signal_is_ours.store(true, std::memory_order_relaxed);
}

void signal_record_init() {
  constexpr uint64_t kCrashes = bit(SIGABRT) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGSEGV);
  catch_by_default(kCrashes);
}

bool in_vfork_child() { return static_cast<int>(raw_syscall(SYS_getpid)) != process; }

void signal_init() {
  // Handlers call these, and must not be the first to look them up.
  (void)REAL(sigaction);
  (void)REAL(pthread_sigmask);
  look_up_jumps();
  exec_init();
  io_init();
  socket_init();
  fd_init();
  cancel_init();
  take_over(bit(SIGSYS));
}

void signal_take_over() { take_over(kAll); }

void signal_new_process() { process = static_cast<int>(raw_syscall(SYS_getpid)); }

void signal_scheduler_started() {
  signal_new_process();
  follow_main_anew();
}

FIBERTHREAD_IN_FORK_CHILD(Embedder, signals, [](FiberRecord*) {
  process = static_cast<int>(raw_syscall(SYS_getpid));
  signals_lock.reset();
  // Another thread may have been writing when the process forked.
  for (auto& slot : actions)
    if (slot.version.load() & 1) slot.version.store(slot.version.load() + 1);
  // Nothing is pending in a child.
  process_queue.bits.store(0);
  process_queue.first = nullptr;
  forget_pending();
  ThreadSignals& s = state_of(tls_current);
  s.queue.bits.store(0);
  s.queue.first = nullptr;
  s.waited_for.store(0);
  s.kept.store(0);
  s.ended = false;
  forget_tellings();
  forget_listener();
  if (taken_over.load() != kAll) return;
  // The one kernel thread gets the program's own alternate stack again.
  stack_t ss = alternate_now();
  raw_syscall(SYS_sigaltstack, arg(&ss), 0);
})

}  // namespace fiberthread

using namespace fiberthread;
using namespace fiberthread::signals;

FIBERTHREAD_EXPORT int sigaction(int sig, const struct sigaction* act, struct sigaction* old) noexcept {
  bool mine = sig > 0 && sig <= kSignals && taken_over.load(std::memory_order_acquire) & bit(sig);
  if (!mine || in_vfork_child()) {
    int r = REAL(sigaction)(sig, act, old);
    if (__builtin_expect(sig == options.dump_signal, 0) && r == 0 && !(taken_over.load(std::memory_order_relaxed) & bit(sig))) {
      if (old) hide_dump(sig, old);
      if (act && !(act->sa_flags & SA_SIGINFO) && act->sa_handler == SIG_DFL) signal_dump_init();
    }
    return r;
  }
  // A signal that was recorded for the caller while there was a handler still runs that handler, even if nothing has told the caller of it
  // yet.
  if (FiberRecord* me = act && !tls_busy ? ours() : nullptr) run_unblocked(me);
  // The caller's memory is read before and written after the lock is held.
  Action wanted, before;
  if (act) {
    wanted.handler = act->sa_flags & SA_SIGINFO ? reinterpret_cast<void*>(act->sa_sigaction) : reinterpret_cast<void*>(act->sa_handler);
    wanted.mask = words(act->sa_mask) & ~kNeverBlocked;
    wanted.flags = act->sa_flags;
  }
  {
    Busy busy;
    SignalsGuard guard;
    before = action_of(sig);
    if (act) {
      set_action(sig, wanted);
      install(sig, wanted);
    }
  }
  // A signal that is ignored is not pending either, blocked or not (POSIX, 2.4.3). The kernel drops what it keeps itself.
  auto is = [&](sighandler_t h) { return act && wanted.handler == reinterpret_cast<void*>(h); };
  if (is(SIG_IGN) || (is(SIG_DFL) && bit(sig) & kIgnoredByDefault)) drop_pending(sig);
  if (old) {
    memset(old, 0, sizeof *old);
    if (before.flags & SA_SIGINFO) old->sa_sigaction = reinterpret_cast<void (*)(int, siginfo_t*, void*)>(before.handler);
    else old->sa_handler = reinterpret_cast<sighandler_t>(before.handler);
    old->sa_mask = as_set(before.mask);
    old->sa_flags = before.flags;
  }
  return 0;
}

namespace fiberthread::signals {
sighandler_t set_handler(int sig, sighandler_t handler, int flags) {
  struct sigaction act, old;
  memset(&act, 0, sizeof act);
  act.sa_handler = handler;
  act.sa_flags = flags;
  if (handler == SIG_ERR || sig < 1 || sig > kSignals) {
    errno = EINVAL;
    return SIG_ERR;
  }
  // BSD's signal() blocks only the signal itself, and System V's blocks nothing.
  return sigaction(sig, &act, &old) == 0 ? old.sa_handler : SIG_ERR;
}
}  // namespace fiberthread::signals

FIBERTHREAD_EXPORT sighandler_t signal(int sig, sighandler_t handler) noexcept {
  bool restart = sig < 1 || sig > kSignals || !(interrupting.load(std::memory_order_relaxed) & bit(sig));
  return set_handler(sig, handler, restart ? SA_RESTART : 0);
}
FIBERTHREAD_ALIAS(bsd_signal, signal);
FIBERTHREAD_ALIAS(ssignal, signal);

FIBERTHREAD_EXPORT sighandler_t sysv_signal(int sig, sighandler_t handler) noexcept {
  return set_handler(sig, handler, static_cast<int>(SA_RESETHAND | SA_NODEFER));
}
FIBERTHREAD_ALIAS(__sysv_signal, sysv_signal);

FIBERTHREAD_EXPORT int siginterrupt(int sig, int interrupt) noexcept {
  struct sigaction act;
  if (sigaction(sig, nullptr, &act) != 0) return -1;
  if (interrupt) {
    interrupting.fetch_or(bit(sig), std::memory_order_relaxed);
    act.sa_flags &= ~SA_RESTART;
  } else {
    interrupting.fetch_and(~bit(sig), std::memory_order_relaxed);
    act.sa_flags |= SA_RESTART;
  }
  return sigaction(sig, &act, nullptr);
}

FIBERTHREAD_EXPORT int sigignore(int sig) noexcept { return set_handler(sig, SIG_IGN, 0) == SIG_ERR ? -1 : 0; }
