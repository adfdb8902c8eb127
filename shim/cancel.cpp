// SPDX-License-Identifier: MIT
// pthread_cancel and its settings.
//
// A request is noted here and in libc's own word (CANCELED), which makes libc's own cancellation points act: its read() and the like look
// at that word before they wait. A parked fiber is woken, and its wait ends. A fiber that may be asleep in the kernel, in a call of libc's
// own, is sent the scheduler's signal. What that does depends on the libc:
// - Up to glibc 2.40, libc makes cancellation asynchronous around each of its waiting system calls. The fiber is made to call cancel_self()
//   as if it had called it at that point.
// - From 2.41 on, libc makes all of them in one small function (LibcWait). If the signal finds the fiber there, and the system call not
//   made, the call ends with EINTR. libc then looks for a request, and acts. A call that has ended by itself is left alone, so that nothing
//   it has done is lost.
#include "shim/cancel.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/select.h>
#include <ucontext.h>

#include "sched/glibc/cancellation.h"
#include "sched/glibc/tcb.h"
#include "sched/preempt.h"
#include "sched/syscall.h"
#include "sched/worker.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/signal_parts.h"
#include "shim/thread.h"
#include "shim/unwinder.h"

namespace fiberthread {
namespace {

struct Cancellation {
  std::atomic<bool> requested;
  // The fiber's own settings. Other threads read them as a hint.
  std::atomic<bool> disabled;
  std::atomic<bool> asynchronous;
  std::atomic<bool> exiting;
  bool ended_one;  // own; see end_may_end_wait()
  bool leaves;     // own; see cancel_leave()
  uint8_t looks;   // own; how often sysmon was asked to poke the fiber once more
  void* result;    // the result of the thread that leaves
};
Cancellation& state_of(FiberRecord* f) { return shim_share<Cancellation, 96, 112>(f); }

// libc's own functions. These are called under a lock, and by handlers, so cancel_init() looks them up.
LibcCancelCalls libc_calls() {
  constexpr static timespec kSecond = {1, 0};
  return {REAL(pthread_setcancelstate), REAL(pthread_setcanceltype), [](const sigset_t* mask) { REAL(ppoll)(nullptr, 0, &kSecond, mask); },
          [](const sigset_t* mask) { REAL(pselect)(0, nullptr, nullptr, nullptr, &kSecond, mask); }};
}

bool libc_unwinds(FiberRecord* me) { return __atomic_load_n(tcb_cancelhandling(me->memory.tcb), __ATOMIC_RELAXED) & kLibcExiting; }

}  // namespace

// A kernel thread has got its record. What was requested before stands in libc's word.
void cancel_adopt(FiberRecord* f) {
  Cancellation& s = state_of(f);
  if (libc_cancel_disabled.is_set(f->memory.tcb)) s.disabled.store(true, std::memory_order_relaxed);
  if (libc_cancel_asynchronous.is_set(f->memory.tcb)) s.asynchronous.store(true, std::memory_order_relaxed);
  // Pairs with the fence in cancel_foreign(): that finds the record, or we find its bit.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!(__atomic_load_n(tcb_cancelhandling(f->memory.tcb), __ATOMIC_RELAXED) & kLibcCanceled)) return;
  s.requested.store(true, std::memory_order_relaxed);
  f->run.interrupts.fetch_or(kInterruptUnwind, std::memory_order_seq_cst);
}

namespace {
// Returns true if the fiber's type is asynchronous, or that of a wait of libc's which its handler has interrupted.
bool is_asynchronous(FiberRecord* f) {
  return state_of(f).asynchronous.load(std::memory_order_seq_cst) || libc_cancel_asynchronous.is_set(f->memory.tcb);
}
}  // namespace

bool cancel_due(FiberRecord* me) { return (is_asynchronous(me) || state_of(me).leaves) && cancel_pending(me); }

bool cancel_due_at(FiberRecord* me, uintptr_t pc) { return !in_wait(me) && cancel_pending(me) && (cancel_due(me) || libc_wait.holds(pc)); }

void cancel_init() {
  (void)libc_calls();
  (void)REAL(syscall);  // handlers may call it
  (void)REAL(ppoll);    // libc_calls() uses these under a lock
  (void)REAL(pselect);
}

void cancel_scheduler_started() { libc_find_cancel_bits(libc_calls()); }

bool cancel_enabled(FiberRecord* me) {
  Cancellation& s = state_of(me);
  if ((s.disabled.load(std::memory_order_relaxed) && !s.leaves) || s.exiting.load(std::memory_order_relaxed)) return false;
  return !(s.requested.load(std::memory_order_relaxed) && libc_unwinds(me));
}

bool cancelled_by_libc(FiberRecord* me) { return !state_of(me).exiting.load(std::memory_order_relaxed) && libc_unwinds(me); }

bool cancel_pending(FiberRecord* me) { return state_of(me).requested.load(std::memory_order_acquire) && cancel_enabled(me); }

void cancel_self() {
  FiberRecord* me = self();
  Cancellation& s = state_of(me);
  void* result = s.leaves ? s.result : PTHREAD_CANCELED;
  // A libc that has LibcWait does the same: cleanup handlers find cancellation disabled.
  if (!s.leaves && libc_wait.known()) REAL(pthread_setcancelstate)(PTHREAD_CANCEL_DISABLE, nullptr);
  cancel_leave(me, result);
  thread_exit(result);
}

void cancel_leave(FiberRecord* me, void* result) {
  if (!me->wait.pins) return;
  void** back = signal_handler_to_leave(me);
  if (!back) return;
  tls_busy = 1;  // the code at the jump target expects this
  std::atomic_signal_fence(std::memory_order_seq_cst);
  Cancellation& s = state_of(me);
  s.leaves = true;
  s.result = result;
  s.requested.store(true, std::memory_order_relaxed);
  s.exiting.store(false, std::memory_order_relaxed);  // it begins to exit only at the jump target
  __atomic_fetch_and(tcb_cancelhandling(me->memory.tcb), ~kLibcExiting, __ATOMIC_RELAXED);
  interrupt(me, kInterruptUnwind | kInterruptLeave);
  __builtin_longjmp(back, 1);
}

void test_cancel() {
  FiberRecord* me = self();
  if (__builtin_expect(cancel_pending(me), 0)) cancel_self();
}

void test_cancel_as_libc() {
  FiberRecord* me = self();
  if (__builtin_expect(!cancel_pending(me), 1)) return;
  if (!me->wait.pins) pthread_testcancel();
  cancel_self();
}

bool cancel_is_asynchronous(FiberRecord* me) { return state_of(me).asynchronous.load(std::memory_order_relaxed); }

void cancel_if_asynchronous() {
  FiberRecord* me = tls_current;
  if (me && !in_wait(me) && cancel_due(me)) cancel_self();
}

bool end_may_end_wait(FiberRecord* me) {
  bool& ended = state_of(me).ended_one;
  if (!end_pending(me)) ended = false;
  return !ended;
}

void end_has_ended_wait(FiberRecord* me) { state_of(me).ended_one = true; }

void cancel_begin_exit(FiberRecord* me) {
  state_of(me).exiting.store(true, std::memory_order_relaxed);
  // A bit that is set from now on ends no wait, since the fiber no longer acts on it.
  constexpr uint32_t kBoth = kInterruptUnwind | kInterruptLeave;
  if (me->run.interrupts.load(std::memory_order_relaxed) & kBoth) me->run.interrupts.fetch_and(~kBoth, std::memory_order_relaxed);
}

namespace {

// Cancels a thread of libc's own as libc does it, except that the signal is ours. The request is noted in the TCB, and the signal is sent
// if the thread may be in a waiting call of libc's. Waits of ours end by the interrupt.
int cancel_foreign(pthread_t t) {
  void* tcb = reinterpret_cast<void*>(t);
  auto tid = static_cast<int>(__atomic_load_n(tcb_tid(tcb), __ATOMIC_RELAXED));
  if (tid <= 0) return 0;  // it has ended
  __atomic_fetch_or(tcb_cancelhandling(tcb), kLibcCanceled, __ATOMIC_SEQ_CST);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (FiberRecord* f = tcb_fiber(tcb)) {
    Cancellation& s = state_of(f);
    s.requested.store(true, std::memory_order_seq_cst);
    // As for a fiber: if it is Busy when the signal comes, it looks afterwards.
    interrupt(f, kInterruptUnwind | (s.asynchronous.load(std::memory_order_seq_cst) ? uint32_t{kInterruptSafePoint} : 0));
  }
  bool may_wait = libc_cancel_asynchronous.is_set(tcb) || libc_wait.known();
  if (may_wait && !libc_cancel_disabled.is_set(tcb)) raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), tid, kPreemptSignal);
  return 0;
}

// Called in the handler, on such a thread. Unwinds from here, through the kernel's frame, or lets libc do it.
void foreign_poked(void* context) {
  void* tcb = reinterpret_cast<void*>(pthread_self());
  if (libc_end_wait(tcb, static_cast<ucontext_t*>(context))) return;
  uint32_t handling = __atomic_load_n(tcb_cancelhandling(tcb), __ATOMIC_SEQ_CST);
  if (!(handling & kLibcCanceled) || handling & kLibcExiting) return;
  if (!libc_cancel_asynchronous.is_set(tcb) || libc_cancel_disabled.is_set(tcb) || tls_busy) return;
  if (tls_current && tls_current->wait.pins) return;  // other threads may find its stack
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&static_cast<ucontext_t*>(context)->uc_sigmask), 0, 8);
  if (FiberRecord* me = tls_current) cancel_begin_exit(me);
  unwinder_load();
  REAL(pthread_exit)(PTHREAD_CANCELED);
}

}  // namespace

void cancel_poked(siginfo_t*, void* context) {
  auto* uc = static_cast<ucontext_t*>(context);
  if (libc_wait_probed(uc)) return;
  FiberRecord* me = tls_current;
  if (!me || me->run.kernel) {
    if (sched_started()) foreign_poked(context);
    return;
  }
  if (in_wait(me) || !cancel_pending(me)) return;
  if (libc_end_wait(me->memory.tcb, uc)) return;
  if (cancel_due_at(me, interrupted_pc(uc))) {
    if (inject_call(context, cancel_self)) return;
    me->run.interrupts.fetch_or(kInterruptSafePoint, std::memory_order_relaxed);  // it looks when it leaves Busy
    // It may be on the way into a system call, in a few instructions of ours where it cannot be unwound. It may sleep after these, and then
    // nothing else would stop it. If sysmon poked it at once, that could be before this handler ends, each time, and the fiber would not get
    // on.
    constexpr uint8_t kMostLooks = 100;
    Cancellation& s = state_of(me);
    if (!tls_busy && s.looks < kMostLooks) {
      s.looks++;
      signals::tell(me, kPreemptSignal, signals::TellBy::SysmonLater);
    }
  }
  signal_look_again(context);
}

void cancel_handler_over(FiberRecord* me, void* context) {
  if (cancel_pending(me)) libc_end_wait(me->memory.tcb, static_cast<ucontext_t*>(context));
}

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int pthread_cancel(pthread_t t) {
  if (!sched_started()) return REAL(pthread_cancel)(t);
  libc_find_cancel_bits(libc_calls());
  libc_find_wait(libc_calls());
  unwinder_load();  // as libc's does; libc's own cancellation points would load it in the thread that ends
  FiberRecord* f = fiber_of(t);
  // libc's pthread_cancel would take our signal for its own.
  if (!f && pthread_equal(t, pthread_self())) f = self();
  if (!f) return stale_handle(t) ? ESRCH : cancel_foreign(t);
  if (f->join.done.load(std::memory_order_acquire)) return 0;
  Cancellation& s = state_of(f);
  s.requested.store(true, std::memory_order_seq_cst);
  __atomic_fetch_or(tcb_cancelhandling(f->memory.tcb), kLibcCanceled, __ATOMIC_SEQ_CST);
  if (f == self()) {
    if (!in_wait(f) && cancel_due(f)) test_cancel_as_libc();
    return 0;
  }
  // If the fiber does not run, the bit for safe points brings it to where it looks for asynchronous cancellation.
  Worker* w = interrupt_running(f, kInterruptUnwind | (is_asynchronous(f) ? uint32_t{kInterruptSafePoint} : 0));
  // With cancellation disabled, the signal would only end calls that the kernel never restarts after a handler, such as poll(). A thread
  // that enables cancellation looks for a request afterwards.
  if (w && !s.disabled.load(std::memory_order_seq_cst)) signal_worker(w, kPreemptSignal, nullptr);
  return 0;
}

FIBERTHREAD_EXPORT int pthread_setcancelstate(int state, int* old) {
  int e = REAL(pthread_setcancelstate)(state, old);
  if (FiberRecord* me = sched_started() ? self() : tls_current; e == 0 && me) {
    state_of(me).disabled.exchange(state == PTHREAD_CANCEL_DISABLE, std::memory_order_seq_cst);
    cancel_if_asynchronous();
  }
  return e;
}

FIBERTHREAD_EXPORT int pthread_setcanceltype(int type, int* old) {
  // Programs may make this call around each allocation, as PARI does. So it is one operation where libc's bit is known, and nothing else to do.
  FiberRecord* fiber = tls_current;
  bool plain = type == PTHREAD_CANCEL_DEFERRED || type == PTHREAD_CANCEL_ASYNCHRONOUS;
  if (fiber && plain && libc_cancel_asynchronous.known() && !state_of(fiber).requested.load(std::memory_order_relaxed)) {
    Cancellation& s = state_of(fiber);
    bool on = type == PTHREAD_CANCEL_ASYNCHRONOUS, was = libc_cancel_asynchronous.is_set(fiber->memory.tcb);
    s.asynchronous.store(on, std::memory_order_relaxed);
    if (was != on) libc_cancel_asynchronous.set(fiber->memory.tcb, on);  // orders the store before the look for a request
    if (old) *old = was ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED;
    if (__builtin_expect(s.requested.load(std::memory_order_seq_cst), 0)) cancel_if_asynchronous();
    return 0;
  }
  int e = REAL(pthread_setcanceltype)(type, old);
  if (FiberRecord* me = sched_started() ? self() : tls_current; e == 0 && me) {
    // Stored before the look for a request. A thread that requests looks at this afterwards.
    state_of(me).asynchronous.exchange(type == PTHREAD_CANCEL_ASYNCHRONOUS, std::memory_order_seq_cst);
    cancel_if_asynchronous();
  }
  return e;
}
