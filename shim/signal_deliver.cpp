// Our kernel handler, and how the program's are run.
#include <errno.h>
#include <string.h>
#include <ucontext.h>

#include "shim/cancel.h"
#include "shim/clock.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/signal_parts.h"
#include "shim/user_memory.h"

namespace fiberthread {
namespace signals {

thread_local constinit stack_t alternate_stack{};

namespace {

constexpr uint64_t kFaults = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGSYS);
constexpr uint64_t kIgnoredByDefault = bit(SIGCHLD) | bit(SIGURG) | bit(SIGWINCH) | bit(SIGCONT);

}  // namespace

void default_action(int sig) {
  if (bit(sig) & kIgnoredByDefault) return;
  struct sigaction k;
  memset(&k, 0, sizeof k);
  k.sa_handler = SIG_DFL;
  REAL(sigaction)(sig, &k, nullptr);
  uint64_t set = bit(sig), old;
  uint64_t tid = static_cast<uint64_t>(raw_syscall(SYS_gettid));
  raw_syscall(SYS_tgkill, process, static_cast<long>(tid), sig);
  raw_syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, arg(&set), arg(&old), 8);
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&old), 0, 8);
}

namespace {

// The control and status of floating point. A handler starts with the initial one and changes nothing for whom it interrupts;
// the kernel sees to that only for the first handler that we run in a frame of its.
class FloatingEnvironment {
#if defined(__x86_64__)
  char x87_[28];
  uint32_t mxcsr_, initial_ = 0x1f80;

 public:
  FloatingEnvironment() { asm volatile("fnstenv %0\n\tstmxcsr %1\n\tfninit\n\tldmxcsr %2" : "=m"(x87_), "=m"(mxcsr_) : "m"(initial_) : "memory"); }
  ~FloatingEnvironment() { asm volatile("fldenv %0\n\tldmxcsr %1" : : "m"(x87_), "m"(mxcsr_) : "memory"); }
#elif defined(__aarch64__)
  uint64_t fpcr_, fpsr_;

 public:
  FloatingEnvironment() {
    asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr\n\tmsr fpcr, xzr\n\tmsr fpsr, xzr" : "=&r"(fpcr_), "=&r"(fpsr_) : : "memory");
  }
  ~FloatingEnvironment() { asm volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(fpcr_), "r"(fpsr_) : "memory"); }
#endif
};

void call(const Action& a, int sig, siginfo_t* info, void* context) {
  FloatingEnvironment environment;
  if (a.flags & SA_SIGINFO) reinterpret_cast<void (*)(int, siginfo_t*, void*)>(a.handler)(sig, info, context);
  else reinterpret_cast<void (*)(int)>(a.handler)(sig);
}

uint64_t mask_during(uint64_t before, const Action& a, int sig) {
  return before | a.mask | (a.flags & SA_NODEFER ? 0 : bit(sig));
}

// In the kernel's frame, on the signal stack.
void run_in_frame(Fiber* me, int sig, siginfo_t* info, ucontext_t* uc) {
  Action a;
  if (!claim(sig, a)) {
    if (a.handler == reinterpret_cast<void*>(SIG_DFL)) default_action(sig);
    return;
  }
  uint64_t saved = mask_of(me), in_frame = words(uc->uc_sigmask);
  state_of(me).restarts = a.flags & SA_RESTART;
  set_mask_of(me, mask_during(saved, a, sig));
  sched_apply_mask();
  call(a, sig, info, uc);
  uint64_t now = words(uc->uc_sigmask);
  // It may have edited the mask that it returns to.
  set_mask_of(me, now == in_frame ? saved : now);
}

// As an ordinary call.
void run_as_call(Fiber* me, siginfo_t* info) {
  int sig = info->si_signo;
  Action a;
  if (!claim(sig, a)) {
    if (a.handler == reinterpret_cast<void*>(SIG_DFL)) default_action(sig);
    return;
  }
  int error = errno;
  uint64_t saved = mask_of(me);
  if (!(a.flags & SA_RESTART)) state_of(me).restarts = false;
  ucontext_t uc;
  if (a.flags & SA_SIGINFO) getcontext(&uc);
  else memset(&uc.uc_sigmask, 0, sizeof uc.uc_sigmask);
  uc.uc_sigmask = as_set(saved);
  {
    tls_busy = tls_busy + 1;
    set_mask_of(me, mask_during(saved, a, sig));
    sched_apply_mask();
    tls_busy = tls_busy - 1;
  }
  call(a, sig, info, &uc);
  tls_busy = tls_busy + 1;
  set_mask_of(me, words(uc.uc_sigmask));
  sched_apply_mask();
  tls_busy = tls_busy - 1;
  errno = error;
}

// A fault in the guard of the running fiber's stack: says so before the default action.
void report_overflow(const Fiber* f, const siginfo_t& info) {
  if (!f || !f->block || f->user_stack) return;
  auto at = static_cast<char*>(info.si_addr);
  if (at < f->block || at >= f->block + f->guard_size) return;
  char line[256];
  char* p = line;
  auto text = [&](const char* s) {
    while (*s) *p++ = *s++;
  };
  auto hex = [&](const void* v) {
    auto n = reinterpret_cast<uintptr_t>(v);
    text("0x");
    for (int shift = 60, begun = 0; shift >= 0; shift -= 4) {
      unsigned d = n >> shift & 15;
      if (d || begun || shift == 0) *p++ = "0123456789abcdef"[d], begun = 1;
    }
  };
  text("fiberthread: stack overflow in fiber ");
  if (*f->name) text("\""), text(f->name), text("\" ");
  text("started at ");
  hex(reinterpret_cast<const void*>(f->start));
  text(", stack ");
  hex(f->stack_low);
  text(" to ");
  hex(f->stack_high);
  text("\n");
  raw_syscall(SYS_write, 2, arg(line), p - line);
}

void fault(Fiber* me, int sig, siginfo_t* info, ucontext_t* uc) {
  if (user_memory_fault(uc)) return;
  Action a = action_of(sig);
  if (handled(a) && (me || !sched_started())) {
    if (me && !me->kernel) run_in_frame(me, sig, info, uc);
    else if (claim(sig, a)) call(a, sig, info, uc);
    return;
  }
  if (sig == SIGSEGV) report_overflow(me, *info);
  struct sigaction k;
  memset(&k, 0, sizeof k);
  k.sa_handler = SIG_DFL;
  REAL(sigaction)(sig, &k, nullptr);  // it faults again when we return, and that ends the process as it should
}

bool sent_to_thread(const siginfo_t& info) {
  if (info.si_code == SI_TKILL) return true;
  // A write to a closed pipe or beyond the size limit concerns the writer; the kernel does not say so.
  return (info.si_signo == SIGPIPE || info.si_signo == SIGXFSZ) && info.si_code <= 0 && info.si_pid == process;
}

// Timers of CPU time concern who used it up: the thread that the kernel found running.
bool profiles(const siginfo_t& info) {
  return (info.si_signo == SIGPROF || info.si_signo == SIGVTALRM) && info.si_code == SI_KERNEL;
}

void dispatch(int sig, siginfo_t* info, ucontext_t* uc) {
  Fiber* me = tls_current;
  if (bit(sig) & kFaults && info->si_code > 0) {
    fault(me, sig, info, uc);
    return;
  }
  if (!sched_started() || (me && me->kernel && tls_busy == 0 && sent_to_thread(*info))) {
    // A kernel thread that stands for itself, and the kernel has done all about its mask.
    if (me && tls_busy > 0) {
      set_mask_of(me, words(uc->uc_sigmask));
      if (record(me, *info, false)) me->interrupts.fetch_or(kInterruptSignal, std::memory_order_seq_cst);
      return;
    }
    Action a;
    if (claim(sig, a)) call(a, sig, info, uc);
    else if (a.handler == reinterpret_cast<void*>(SIG_DFL)) default_action(sig);
    return;
  }
  bool idle_context = tls_busy > 0 || !me;  // nothing of the program may run, no lock may be taken
  siginfo_t got = *info;
  if (!is_poke(got)) {
    bool gone = false;
    Fiber* timed = got.si_code == SI_TIMER ? timer_target(got.si_timerid, &gone) : nullptr;
    if (gone) return;
    Fiber* to = timed ? timed : me && (sent_to_thread(got) || profiles(got)) ? me : pick_target(me, sig);
    if (to != me || idle_context || mask_of(me) & bit(sig)) {
      if (!record(to, got, !timed && !sent_to_thread(got))) return;
      if (!to) return;
      if (timed && mask_of(to) & bit(sig) && !(state_of(to).waited_for.load(std::memory_order_seq_cst) & bit(sig))) return;
      if (to == me) me->interrupts.fetch_or(kInterruptSignal, std::memory_order_seq_cst);
      else if (idle_context) tell_by_sysmon(to, sig);
      else tell(to, sig);
      return;
    }
    run_in_frame(me, sig, &got, uc);
  }
  if (idle_context) return;  // when it leaves Busy it looks
  while (take_any(me, ~mask_of(me), &got)) run_in_frame(me, got.si_signo, &got, uc);
}

}  // namespace

void on_signal(int sig, siginfo_t* info, void* context) {
  int error = errno;
  auto* uc = static_cast<ucontext_t*>(context);
  Fiber* me = tls_current;
  Worker* w = me && !me->kernel && tls_busy == 0 ? me->worker : nullptr;
  if (w) {
    // The kernel has changed the mask for us, and changes it back to uc_sigmask when we return.
    Action a = action_of(sig);
    w->kernel_mask = mask_during(words(uc->uc_sigmask), a, sig) & ~kNeverBlocked;
  }
  dispatch(sig, info, uc);
  if (w) w->kernel_mask = words(uc->uc_sigmask) & ~kNeverBlocked;
  errno = error;
}

}  // namespace signals

using namespace signals;

bool signal_restarts(Fiber* me) { return state_of(me).restarts; }

void leave_busy_slow() {
  Fiber* me = tls_current;
  state_of(me).restarts = true;  // until a handler says no
  while (me->interrupts.load(std::memory_order_relaxed) & kInterruptSignal) {
    me->interrupts.fetch_and(~uint32_t{kInterruptSignal}, std::memory_order_seq_cst);
    siginfo_t info;
    while (take_any(me, ~mask_of(me), &info)) run_as_call(me, &info);
  }
  cancel_if_asynchronous();
}

}  // namespace fiberthread

using namespace fiberthread;
using namespace fiberthread::signals;

// ---- the alternate stack: recorded, but handlers run on the worker's own ----

FIBERTHREAD_EXPORT int sigaltstack(const stack_t* ss, stack_t* old) noexcept {
  if (!ours()) return REAL(sigaltstack)(ss, old);
  if (ss) {
    if (ss->ss_flags & ~(SS_DISABLE | SS_ONSTACK | static_cast<int>(1u << 31))) return static_cast<int>(with_errno(-EINVAL));
    if (!(ss->ss_flags & SS_DISABLE) && ss->ss_size < 2048 /* the kernel's MINSIGSTKSZ */) return static_cast<int>(with_errno(-ENOMEM));
  }
  stack_t before = alternate_stack;
  if (!before.ss_sp) before.ss_flags = SS_DISABLE;
  if (ss) alternate_stack = ss->ss_flags & SS_DISABLE ? stack_t{} : *ss;
  if (old) *old = before;
  return 0;
}
