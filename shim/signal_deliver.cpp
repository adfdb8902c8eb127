// SPDX-License-Identifier: MIT
// Our kernel handler, and how the program's handlers are run.
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <ucontext.h>
#include <unwind.h>

#include "sched/arch/arch.h"
#include "sched/observe/dumper.h"
#include "sched/observe/report.h"
#include "sched/observe/observe.h"
#include "sched/worker.h"
#include "shim/cancel.h"
#include "shim/process.h"
#include "shim/real.h"
#include "shim/posix_timer.h"
#include "shim/signal_frame.h"
#include "shim/user_memory.h"

namespace fiberthread {
namespace signals {

bool sent_to_thread(const siginfo_t& info) {
  if (info.si_code == SI_TKILL || kept_for_this_thread(info)) return true;
  // A write to a closed pipe or beyond the size limit concerns the writer, but the kernel does not say so.
  return (info.si_signo == SIGPIPE || info.si_signo == SIGXFSZ) && info.si_code <= 0 && info.si_pid == process;
}

// From ourselves, tgkill() with a number of the kernel's means the kernel thread: gettid() gives other numbers.
bool sent_to_main(const siginfo_t& info) {
  return info.si_code == SI_TKILL && info.si_pid != process && raw_syscall(SYS_gettid) == process;
}

namespace {

constexpr uint64_t kFaults = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGSYS);

}  // namespace

void default_action(int sig) {
  if (bit(sig) & kIgnoredByDefault) return;
  if (sig == options.dump_signal) {
    dump_request();
    return;
  }
  if (record_wanted() && (kFaults | bit(SIGABRT)) & bit(sig)) record_end(tls_current);
  struct sigaction k;
  memset(&k, 0, sizeof k);
  k.sa_handler = SIG_DFL;
  REAL(sigaction)(sig, &k, nullptr);
  uint64_t set = bit(sig), old = 0;
  uint64_t tid = static_cast<uint64_t>(raw_syscall(SYS_gettid));
  raw_syscall(SYS_tgkill, process, static_cast<long>(tid), sig);
  raw_syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, arg(&set), arg(&old), 8);
  sched_restore_signals(old);
}

namespace {

void call(const Action& a, int sig, siginfo_t* info, void* context) {
  FloatingEnvironment environment;  // the kernel does this only for the first handler that we run in a frame of its own
  if (a.flags & SA_SIGINFO) reinterpret_cast<void (*)(int, siginfo_t*, void*)>(a.handler)(sig, info, context);
  else reinterpret_cast<void (*)(int)>(a.handler)(sig);
}

uint64_t mask_during(uint64_t before, const Action& a, int sig) {
  return without_trap(before | a.mask | (a.flags & SA_NODEFER ? 0 : bit(sig))) & ~kNeverBlocked;
}

// ---- as ordinary calls, for signals that were recorded ----

// Calls the handler. This also returns when cancel_leave() leaves a handler that has interrupted a wait. From then on nothing of this frame
// is used. A handler on top of that one, which has interrupted no wait of its own, is left with it.
[[gnu::noinline]] void call_on(FiberRecord* me, char* stack, const Action& a, int sig, siginfo_t* info, ucontext_t* context) {
  struct Arguments {
    char* stack;
    const Action& a;
    int sig;
    siginfo_t* info;
    ucontext_t* context;
    static void call_here(void* p) {
      auto& x = *static_cast<Arguments*>(p);
      call(x.a, x.sig, x.info, x.context);
    }
    static void call_there(void* p) {
      auto& x = *static_cast<Arguments*>(p);
      if (x.stack) fiberthread_call_on(x.stack, call_here, p);
      else call_here(p);
    }
  } arguments{stack, a, sig, info, context};
  if (!in_wait(me)) return Arguments::call_there(&arguments);
  void* back[5];
  if (__builtin_setjmp(back) != 0) return;
  state_of(me).back = back;
  me->wait.pins_below = me->wait.pins;
  fiberthread_call_to_leave(Arguments::call_there, &arguments);
}

// Runs what is pending for the fiber and not blocked, and leaves Busy, once. Returns true if all handlers asked for SA_RESTART.
bool run_pending(FiberRecord* me) {
  bool restarts = true;
  for (;;) {
    me->run.interrupts.fetch_and(~uint32_t{kInterruptSafePoint}, std::memory_order_seq_cst);
    siginfo_t info;
    while (take_any(me, ~mask_of(me), &info)) restarts &= run_as_call(me, &info, mask_of(me)) != Ran::Interrupts;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    tls_busy = 0;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (!(me->run.interrupts.load(std::memory_order_relaxed) & kInterruptSafePoint)) return restarts;
    tls_busy = 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

}  // namespace

Ran run_as_call(FiberRecord* me, siginfo_t* info, uint64_t back, ucontext_t* context) {
  int sig = info->si_signo;
  Action a;
  if (comes_too_late(*info)) return Ran::No;
  if (!claim(sig, a)) {
    if (a.handler == reinterpret_cast<void*>(SIG_DFL)) default_action(sig);
    return Ran::No;
  }
  if (observed(kObserveSignal)) debug_line("signal", me, "gets one that was kept: ", static_cast<uint64_t>(sig));
  int error = errno;
  ucontext_t here;
  if (!context) {
    if (a.flags & SA_SIGINFO) getcontext(&here);
    context = &here;
  }
  auto sp = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  char* other = me->run.kernel ? nullptr : other_stack(a, sp);
  if (!other && !me->run.kernel) other = stack_of_kernel_thread(me, a, sp);
  context->uc_stack = show_alternate();
  set_words(context->uc_sigmask, back);
  uint64_t before = mask_of(me), during = mask_during(before, a, sig);
  set_mask_of(me, during);
  sched_apply_mask();
  give_away(me, during & ~before);
  // Signals that this handler does not block run first, as if they had interrupted it at once.
  run_pending(me);
  void** outer = state_of(me).back;
  uint32_t below = me->wait.pins_below;
  call_on(me, other, a, sig, info, context);
  tls_busy = 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  state_of(me).back = outer;
  me->wait.pins_below = below;
  uint64_t after = words(context->uc_sigmask) & ~kNeverBlocked;
  restore_mask(me, after);
  if (!me->run.kernel) set_alternate(context->uc_stack, sp);
  errno = error;
  return a.flags & SA_RESTART ? Ran::Restarts : Ran::Interrupts;
}

namespace {

// ---- in our kernel handler ----

// What the signal has interrupted. While our handler runs, the fiber is Busy once more than it was.
struct Interrupted {
  FiberRecord* fiber;
  ucontext_t* uc;
  uint32_t busy;
};

void die(int sig) {
  struct sigaction k;
  memset(&k, 0, sizeof k);
  k.sa_handler = SIG_DFL;
  REAL(sigaction)(sig, &k, nullptr);
  default_action(sig);
}

// Says so before the default action if the fault is in the guard of the running fiber's stack. Returns false if it is not.
bool report_overflow(const FiberRecord* f, const void* address) {
  if (!f || !f->memory.block || f->memory.user_stack) return false;
  auto at = static_cast<const char*>(address);
  if (at < f->memory.guard || at >= f->memory.guard + f->memory.guard_size) return false;
  {
    Output out;
    put_name(out.begin() << "stack overflow in ", {f->identity.id, f->identity.name, f->identity.is_main});
    if (f->identity.start) out << ", started at " << reinterpret_cast<const void*>(f->identity.start);
    out << ", stack " << static_cast<const void*>(f->memory.stack_low) << " to " << static_cast<const void*>(f->memory.stack_high) << " ("
        << static_cast<uint64_t>(f->memory.stack_high - f->memory.stack_low) / 1024 << " kB)\n";
  }
  uint64_t id = f->identity.id;
  if (!dumper_start(0, &id, 1) || !dumper_wait()) report_fibers(0, &id, 1);
  return true;
}

// Makes the fiber go on in the program's handler when ours returns.
void enter(Interrupted& in, int sig, const siginfo_t& info) {
  Action a;
  if (!claim(sig, a)) {
    if (a.handler == reinterpret_cast<void*>(SIG_DFL)) default_action(sig);
    return;
  }
  FiberRecord* me = in.fiber;
  // The kernel's mask is the true one. libc's abort() unblocks its signal without our knowing.
  uint64_t before = words(in.uc->uc_sigmask) & ~kNeverBlocked, during = mask_during(before, a, sig);
  if (!frame_enter(me, a, sig, info, in.uc, in.busy, before, during)) {
    // As the kernel does it: lack of stack for another signal is a fault, and that may have a handler on another stack.
    Action f = action_of(SIGSEGV);
    siginfo_t none;
    memset(&none, 0, sizeof none);
    none.si_signo = SIGSEGV;
    none.si_code = SI_KERNEL;
    during = mask_during(before, f, SIGSEGV);
    bool second = info.si_signo != SIGSEGV && handled(f) && !(before & bit(SIGSEGV)) && claim(SIGSEGV, f) &&
                  frame_enter(me, f, SIGSEGV, none, in.uc, in.busy, before, during);
    if (!second) {
      report_overflow(me, info.si_signo == SIGSEGV ? info.si_addr : reinterpret_cast<void*>(interrupted_sp(in.uc) - 1));
      die(SIGSEGV);
      return;
    }
  }
  in.busy = 0;
  set_mask_of(me, during);
  if (!me->run.kernel) me->run.worker->run.kernel_mask = during;
}

// Makes the kernel make the system call again. It shows the registers of before the call.
void make_call_again(ucontext_t* uc) { set_interrupted_pc(uc, interrupted_pc(uc) - kSystemCallSize); }

// What remains to do for a signal. Return: nothing. CallInPlace: to call the program's handler within ours, on a kernel thread that handles
// its signals itself. LookForMore: to run what the interrupted fiber has pending.
enum class Then { Return, CallInPlace, LookForMore };

Then fault(Interrupted& in, int sig, siginfo_t* info) {
  if (user_memory_fault(in.uc)) return Then::Return;
  FiberRecord* me = in.fiber;
  if (handled(action_of(sig)) && (me || !sched_started())) {
    if (!me || me->run.kernel || stack_of_kernel_thread(me, action_of(sig), interrupted_sp(in.uc))) return Then::CallInPlace;
    enter(in, sig, *info);
    return Then::Return;
  }
  bool reported = sig == SIGSEGV && report_overflow(me, info->si_addr);
  if (record_wanted() && !reported && sig != SIGSYS) record_end(me);
  if (sig == SIGSYS) make_call_again(in.uc);
  struct sigaction k;
  memset(&k, 0, sizeof k);
  k.sa_handler = SIG_DFL;
  REAL(sigaction)(sig, &k, nullptr);  // the fault comes again when we return, and then ends the process as it should
  return Then::Return;
}

FiberRecord* taker_here(const siginfo_t& info) {
  FiberRecord* f = sched_taker_here();
  return f && (sent_to_thread(info) || sent_to_owner(f, info)) ? f : nullptr;
}

// Passes a signal of the program on to the fiber that gets it. That is the first of these which exists:
//
//   1. the fiber whose timer sent the signal, or main if another process sent it to main by main's number, or the fiber whose own kernel
//      thread sleeps here, if the signal was sent to that;
//   2. the interrupted fiber, if the signal was sent to it, or is about its CPU time or about a file that it owns;
//   3. a fiber that runs, if the signal is about CPU time and has interrupted no fiber; else the fiber that pick_target() finds. That finds none
//      if no thread takes the signal now.
//
// If that fiber is the interrupted one, its handler runs now, except in an idle context (see dispatch()) or after another signal of the
// number. A fiber of row 1 or 3 must not block the signal either; the kernel has given a signal of row 2 to this thread, so that signal is not
// blocked. Otherwise pass_on() records the signal: in rows 1 and 2, or if the fiber of row 3 is the interrupted one, for that fiber; else for
// the process, and it asks the fiber of row 3 to take it.
Then pass_on(Interrupted& in, int sig, siginfo_t& got, bool idle_context) {
  FiberRecord* me = in.fiber;
  TellBy by = idle_context ? TellBy::Sysmon : TellBy::Caller;
  TimerTarget target(got);
  if (target.gone()) return Then::Return;
  FiberRecord* meant = target.fiber() ? target.fiber() : sent_to_main(got) ? main_fiber : taker_here(got);
  // A signal that the kernel gave to this thread is not blocked, whatever our mask says.
  bool mine = me && !meant && (sent_to_thread(got) || profiles(got) || sent_to_owner(me, got));
  FiberRecord* to = meant ? meant : mine ? me : !me && profiles(got) ? running_fiber(sig) : nullptr;
  if (!to) to = pick_target(me, sig);
  // One of the same number that came just before, while the fiber was Busy, goes first.
  bool after_another = me && state_of(me).queue.bits.load(std::memory_order_relaxed) & bit(sig) & ~mask_of(me);
  if (to == me && !idle_context && !after_another && (mine || !(mask_of(me) & bit(sig)))) {
    if (observed(kObserveSignal)) debug_line("signal", me, "gets at once ", static_cast<uint64_t>(sig));
    timer_signal_is_got(got);
    if (stack_of_kernel_thread(me, action_of(sig), interrupted_sp(in.uc))) return Then::CallInPlace;
    enter(in, sig, got);
  } else if (!to || (to != me && !meant)) {
    if (observed(kObserveSignal)) debug_line("signal", to, "is to get, of the process's, ", static_cast<uint64_t>(sig));
    give(to, got, by);
  } else {
    if (observed(kObserveSignal)) debug_line("signal", to, "is to get later ", static_cast<uint64_t>(sig));
    bool for_thread = meant || sent_to_thread(got) || (mine && sent_to_owner(me, got));
    if (!record(to, got, for_thread ? SentTo::Thread : SentTo::Process)) return to == me ? Then::LookForMore : Then::Return;
    if (meant && mask_of(to) & bit(sig) && !(state_of(to).waited_for.load(std::memory_order_seq_cst) & bit(sig))) return Then::Return;
    if (to == me) interrupt(me, kInterruptSafePoint);  // or it might just be about to park
    else tell(to, sig, by, sent_to_thread(got) ? process : 0);
  }
  return Then::LookForMore;
}

Then dispatch(Interrupted& in, int sig, siginfo_t* info) {
  FiberRecord* me = in.fiber;
  if (bit(sig) & kFaults && info->si_code > 0) return fault(in, sig, info);
  bool ending = me && frame_ending(in.uc);
  uint64_t before = words(in.uc->uc_sigmask);  // entering a handler changes it
  // If true, no code of the program may run here and no lock may be taken.
  bool idle_context = in.busy > 0 || !me || ending || in_wait(me);
  if (!sched_started() || (me && me->run.kernel && !idle_context && sent_to_thread(*info))) {
    if (!me || !idle_context) return Then::CallInPlace;
    set_mask_of(me, words(in.uc->uc_sigmask));
    if (record(me, *info, SentTo::Thread)) interrupt(me, kInterruptSafePoint);
    if (ending) frame_end_anew(in.uc);
    return Then::Return;
  }
  siginfo_t got = *info;
  if (!is_poke(got))
    if (Then then = pass_on(in, sig, got, idle_context); then != Then::LookForMore) return then;
  if (ending) frame_end_anew(in.uc);
  if (idle_context) return Then::Return;  // it looks when it leaves Busy
  // A signal that the handler before does not block goes on top of it, as in the kernel.
  while (take_any(me, ~mask_of(me), &got)) {
    if (observed(kObserveSignal)) debug_line("signal", me, "gets one that was kept: ", static_cast<uint64_t>(got.si_signo));
    if (!comes_too_late(got)) enter(in, got.si_signo, got);
  }
  give_away(me, mask_of(me) & ~before);  // what the handlers block goes to other fibers
  return Then::Return;
}

// Runs a handler in the child of a vfork. TLS, actions and what is pending are its parent's there. The signal is its own.
void in_vforked_child(int sig, siginfo_t* info, ucontext_t* uc) {
  Action a = action_of(sig);
  if (!handled(a) || a.flags & SA_RESETHAND) {
    struct sigaction k;
    memset(&k, 0, sizeof k);
    k.sa_handler = SIG_DFL;
    REAL(sigaction)(sig, &k, nullptr);
  }
  if (handled(a)) {
    uint64_t mask = mask_during(words(uc->uc_sigmask), a, sig);
    raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&mask), 0, 8);
    call(a, sig, info, uc);
  } else if (info->si_code <= 0) {                        // else the fault comes again
    raw_syscall(SYS_kill, raw_syscall(SYS_getpid), sig);  // it is blocked until we return
  }
}

// Returns true if the kernel has gone to the thread's alternate stack because we ask for that, but the program has not.
bool on_wrong_stack(int sig, const ucontext_t* uc) {
  if (action_of(sig).flags & SA_ONSTACK) return false;
  auto low = reinterpret_cast<uintptr_t>(uc->uc_stack.ss_sp), here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  size_t size = uc->uc_stack.ss_size;
  return here - low < size && interrupted_sp(uc) - low > size;
}

// Calls the handler within ours. The kernel has blocked all signals, and not only those of the action.
void call_in_place(Interrupted& in, int sig, siginfo_t* info) {
  ucontext_t* uc = in.uc;
  if (in.fiber && handled(action_of(sig)) && on_wrong_stack(sig, uc)) {
    enter(in, sig, *info);  // as on a fiber, from where it was interrupted
    tls_busy = in.busy;
    return;
  }
  Action a;
  if (claim(sig, a)) {
    uint64_t mask = mask_during(words(uc->uc_sigmask), a, sig);
    raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&mask), 0, 8);
    call(a, sig, info, uc);
  } else if (a.handler == reinterpret_cast<void*>(SIG_DFL)) {
    default_action(sig);
  }
}

// Returns true if a filter has trapped a call that the library has made of its own accord. The answer to the call is then that the kernel
// has no such call. The program's handler is not asked. It might end the process for that call, or make calls that are trapped in turn.
bool not_the_programs(const siginfo_t* info, ucontext_t* uc) {
  constexpr int kBySeccomp = 1;  // Linux' SYS_SECCOMP
  if (info->si_code != kBySeccomp || !is_own_syscall(info->si_call_addr)) return false;
  if (!filtered.load(std::memory_order_relaxed)) filtered.fetch_add(1, std::memory_order_relaxed);
  set_interrupted_result(uc, -ENOSYS);
  return true;
}

// SIGSYS is open where all else is blocked, but only for traps. If another thread or process has sent it, this blocks it there as well,
// sends it once more, and returns true.
bool put_off(const siginfo_t* info, ucontext_t* uc) {
  uint64_t mask = words(uc->uc_sigmask);
  bool in_worker = !(kIdleMask & ~mask) && (tls_busy || !tls_current), locked = !(~kTrapMask & ~mask & ~(bit(SIGKILL) | bit(SIGSTOP)));
  if (info->si_code > 0 || !(in_worker || locked)) return false;
  if (is_poke(*info) && !locked) return true;  // the fiber is Busy, and looks at what it was sent when it leaves that
  set_words(uc->uc_sigmask, mask | kTrapMask);
  Worker* w = in_worker ? this_worker() : nullptr;
  if (w) w->run.kernel_mask |= kTrapMask;
  long tid = raw_syscall(SYS_gettid);
  if (info->si_code == SI_TKILL) raw_syscall(SYS_tgkill, process, tid, SIGSYS);
  else if (is_poke(*info) || kept_for_this_thread(*info)) raw_syscall(SYS_rt_tgsigqueueinfo, process, tid, SIGSYS, arg(info));
  else if (info->si_code == SI_QUEUE) raw_syscall(SYS_rt_sigqueueinfo, process, SIGSYS, arg(info));
  else raw_syscall(SYS_kill, process, SIGSYS);
  return true;
}

}  // namespace

// Runs with all signals blocked, on the worker's signal stack.
void on_signal(int sig, siginfo_t* info, void* context) {
  int error = errno;
  if (__builtin_expect(sig == SIGSYS, 0)) {
    auto* uc = static_cast<ucontext_t*>(context);
    if (not_the_programs(info, uc) || put_off(info, uc)) return;
  }
  if (__builtin_expect(tls_vforked && in_vfork_child(), 0)) {
    in_vforked_child(sig, info, static_cast<ucontext_t*>(context));
    errno = error;
    return;
  }
  if (__builtin_expect(sig == options.dump_signal, 0) && !handled(action_of(sig))) {
    if (!is_poke(*info)) dump_request();
    errno = error;
    return;
  }
  Interrupted in{tls_current, static_cast<ucontext_t*>(context), tls_busy};
  tls_busy = in.busy + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  Then then = dispatch(in, sig, info);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  tls_busy = in.busy;
  if (then == Then::CallInPlace) call_in_place(in, sig, info);
  errno = error;
}

// Called at the end of a handler. Runs the signals that its mask has kept back. Returns the word in which more signals show, or null if the
// interrupted code is Busy. The caller is Busy, once, on return.
extern "C" __attribute__((visibility("hidden"), used)) std::atomic<uint32_t>* fiberthread_signal_leave(Frame* f) {
  tls_busy = 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  FiberRecord* me = tls_current;
  ucontext_t* uc = f->uc();
  uint32_t busy;
  frame_leaving(me, f, &busy);
  set_words(uc->uc_sigmask, without_trap(words(uc->uc_sigmask)));  // the kernel's rt_sigreturn() may set it
  uint64_t mask = words(uc->uc_sigmask) & ~kNeverBlocked;
  restore_mask(me, mask);
  if (busy == 0) {
    if (me->run.interrupts.load(std::memory_order_relaxed) & kInterruptSafePoint) {
      me->run.interrupts.fetch_and(~uint32_t{kInterruptSafePoint}, std::memory_order_seq_cst);
      tls_busy = 0;
      cancel_if_asynchronous();
      tls_busy = 1;
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    // This uses the same frame. Otherwise signals that come fast would fill the stack.
    while (take_any(me, ~mask_of(me), &f->info)) run_as_call(me, &f->info, mask_of(me), uc);
    cancel_handler_over(me, uc);
  }
  frame_left(me, f);
  return busy == 0 ? &me->run.interrupts : nullptr;
}

}  // namespace signals

using namespace signals;

// Called by the unwinder for the frame of fiberthread_call_to_leave(). Cleanup handlers of the program's handler have run by now.
extern "C" __attribute__((visibility("hidden"), used)) _Unwind_Reason_Code fiberthread_leave_personality(int, _Unwind_Action actions,
                                                                                                         _Unwind_Exception_Class,
                                                                                                         _Unwind_Exception*,
                                                                                                         _Unwind_Context*) {
  constexpr int kEnds = _UA_FORCE_UNWIND | _UA_CLEANUP_PHASE;
  if ((actions & kEnds) == kEnds && tls_current) cancel_leave(tls_current, PTHREAD_CANCELED);
  return _URC_CONTINUE_UNWIND;
}

void signal_look_again(void* context) {
  auto* uc = static_cast<ucontext_t*>(context);
  if (frame_ending(uc)) frame_end_anew(uc);
}

void** signal_handler_to_leave(FiberRecord* me) {
  void** back = state_of(me).back;
  // A handler that was left by a jump does not count.
  bool above = back > static_cast<void*>(__builtin_frame_address(0)) || on_alternate_now();
  return above ? back : nullptr;
}

bool signal_restarts(FiberRecord* me) { return state_of(me).restarts; }

void signal_at_safe_point(FiberRecord* me) {
  tls_busy = 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  bool restarts = run_pending(me);
  state_of(me).restarts = restarts;
  // If the fiber has just begun a wait, that ends first, by this bit. The request came before the wait looked.
  if (is_only_wait(me) && cancel_due(me)) me->run.interrupts.fetch_or(kInterruptSafePoint, std::memory_order_relaxed);
  else cancel_if_asynchronous();
}

}  // namespace fiberthread
