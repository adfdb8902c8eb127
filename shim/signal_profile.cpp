// SPDX-License-Identifier: MIT
// Signals of CPU time, as setitimer() sends them: which thread they are about, and how they come with a tick.
#include <signal.h>
#include <ucontext.h>

#include "sched/worker.h"
#include "shim/signal_parts.h"

namespace fiberthread {
namespace signals {

// Timers of CPU time concern the thread that has used the time. That is the thread that the kernel found running.
bool profiles(const siginfo_t& info) { return (info.si_signo == SIGPROF || info.si_signo == SIGVTALRM) && info.si_code == SI_KERNEL; }

// Such a signal that was recorded while it had a handler does nothing once that is gone. On NPTL it would have come before.
bool comes_too_late(const siginfo_t& info) { return profiles(info) && !handled(action_of(info.si_signo)); }

// For such a signal that has come to a kernel thread without a fiber, because the one that used the CPU had it blocked at that moment, in the
// handler of a tick for example. Any fiber that runs will do.
FiberRecord* running_fiber(int sig) {
  auto runs = [&](Worker* w) {
    FiberRecord* f = w->run.running.load(std::memory_order_relaxed);
    return f && !(__atomic_load_n(&f->run.sigmask, __ATOMIC_RELAXED) & bit(sig)) ? f : nullptr;
  };
  uint64_t n = 0;
  for (Worker* w = all_workers(); w; w = w->thread.all_next) n += runs(w) != nullptr;
  uint64_t skip = n ? cycles() % n : 0;
  for (Worker* w = all_workers(); w; w = w->thread.all_next)
    if (FiberRecord* f = runs(w); f && skip-- == 0) return f;
  return nullptr;
}

// setitimer()'s signals are the process's. While the handler of the tick blocks them, the kernel turns to a thread that does not: often the
// process's first one, asleep for main. A profiler would then find main in a wait, instead of the thread that uses the CPU.
int take_at_tick(siginfo_t* info, const void* context) {
  FiberRecord* me = tls_current;
  if (!me || me->run.kernel || tls_vforked) return 0;
  auto taken = [](int sig) { return handled(action_of(sig)) ? bit(sig) : 0; };
  uint64_t set = (taken(SIGPROF) | taken(SIGVTALRM)) & ~words(static_cast<const ucontext_t*>(context)->uc_sigmask);
  timespec at_once{};
  long sig = set ? raw_syscall(SYS_rt_sigtimedwait, arg(&set), arg(info), arg(&at_once), 8) : 0;
  return sig > 0 ? static_cast<int>(sig) : 0;
}

void deliver_at_tick(int sig, siginfo_t* info, void* context) {
  on_signal(sig, info, context);
  uint64_t all = ~kTrapMask;  // a handler that was called in place has run with its own mask
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&all), 0, 8);
}

}  // namespace signals
}  // namespace fiberthread
