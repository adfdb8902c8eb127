// pthread_cancel and its settings.
//
// A request is noted here and in libc's own word (CANCELED), which makes libc's own cancellation points act: its
// read() and the like look at that before they wait. A fiber that is parked is woken, and its wait ends. One that may be asleep in
// the kernel is sent the scheduler's signal: where libc has made cancellation asynchronous, as it does around each of
// its waiting system calls, the fiber is made to call cancel_self() as if it had done so itself at that point.
#include "shim/cancel.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <ucontext.h>

#include "sched/preempt.h"
#include "sched/syscall.h"
#include "sched/tcb.h"
#include "sched/worker.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/signal.h"
#include "shim/thread.h"

namespace fiberthread {
namespace {

struct Cancellation {
  std::atomic<bool> requested;
  // The fiber's own settings; others read them as a hint.
  std::atomic<bool> disabled;
  std::atomic<bool> asynchronous;
  std::atomic<bool> exiting;
  bool ended_one;  // own; see end_one_wait()
  bool leaves;     // own; see cancel_leave()
  void* result;    // what it leaves with
};
Cancellation& state_of(FiberRecord* f) { return shim_share<Cancellation, 96, 112>(f); }

// Where libc keeps "asynchronous" and "disabled" in a TCB: found by experiment, as an offset and the bits that change.
struct Field {
  std::atomic<int32_t> offset{-1};
  std::atomic<uint32_t> bits{0};

  bool is_set(void* tcb) const {
    int32_t at = offset.load(std::memory_order_acquire);
    return at >= 0 && static_cast<volatile unsigned char*>(tcb)[at] & bits.load(std::memory_order_relaxed);
  }
  // `set`(value, &old) is what changes it from `cleared`.
  void find(int (*set)(int, int*), int value, int cleared) {
    if (offset.load(std::memory_order_acquire) >= 0) return;
    constexpr size_t kLook = 2048;
    unsigned char before[kLook];
    auto* tcb = static_cast<volatile unsigned char*>(self()->tcb);
    Busy busy;
    int old;
    for (size_t i = 0; i < kLook; i++) before[i] = tcb[i];
    if (set(value, &old) != 0) return;
    int32_t at = -1;
    for (size_t i = 0; i < kLook && at < 0; i++)
      if (before[i] != tcb[i]) at = static_cast<int32_t>(i);
    uint32_t changed = at >= 0 ? before[at] ^ tcb[at] : 0;
    set(old, nullptr);
    if (at < 0 || old != cleared) return;
    bits.store(changed, std::memory_order_relaxed);
    offset.store(at, std::memory_order_release);
  }
};
Field type_field, state_field;
// Of _thread_db_pthread_cancelhandling's word, stable since 2.0.
constexpr uint32_t kLibcCanceled = 8, kLibcExiting = 16;

void find_fields() {
  type_field.find(REAL(pthread_setcanceltype), PTHREAD_CANCEL_ASYNCHRONOUS, PTHREAD_CANCEL_DEFERRED);
  state_field.find(REAL(pthread_setcancelstate), PTHREAD_CANCEL_DISABLE, PTHREAD_CANCEL_ENABLE);
}

bool libc_is_asynchronous(FiberRecord* f) { return type_field.is_set(f->tcb); }

bool libc_unwinds(FiberRecord* me) { return __atomic_load_n(tcb_cancelhandling(me->tcb), __ATOMIC_RELAXED) & kLibcExiting; }

}  // namespace

namespace {
// A kernel thread has got its record: what was asked before is in libc's place.
void adopt(FiberRecord* f) {
  Cancellation& s = state_of(f);
  if (state_field.is_set(f->tcb)) s.disabled.store(true, std::memory_order_relaxed);
  if (type_field.is_set(f->tcb)) s.asynchronous.store(true, std::memory_order_relaxed);
  // With that in cancel_foreign(): it finds the record, or we its bit.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!(__atomic_load_n(tcb_cancelhandling(f->tcb), __ATOMIC_RELAXED) & kLibcCanceled)) return;
  s.requested.store(true, std::memory_order_relaxed);
  f->interrupts.fetch_or(kInterruptCancel, std::memory_order_seq_cst);
}

bool asynchronous_and_pending(FiberRecord* me) {
  return (state_of(me).asynchronous.load(std::memory_order_relaxed) || state_of(me).leaves) && cancel_pending(me);
}
}  // namespace

void cancel_init() {
  find_fields();
  kernel_record_hook = adopt;
  (void)REAL(syscall);  // handlers may call it
  cancel_due = asynchronous_and_pending;
  cancel_now = cancel_self;
  preempt_poke_hook = cancel_poked;
}

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
  cancel_leave(me, result);
  thread_exit(result);
}

void cancel_leave(FiberRecord* me, void* result) {
  if (!me->queued) return;
  void** back = signal_handler_to_leave(me);
  if (!back) return;
  tls_busy = 1;  // as where it goes on
  std::atomic_signal_fence(std::memory_order_seq_cst);
  Cancellation& s = state_of(me);
  s.leaves = true;
  s.result = result;
  s.requested.store(true, std::memory_order_relaxed);
  s.exiting.store(false, std::memory_order_relaxed);  // it begins to exit where it is left to
  interrupt(me, kInterruptCancel | kInterruptLeave);
  __builtin_longjmp(back, 1);
}

void test_cancel() {
  FiberRecord* me = self();
  if (__builtin_expect(cancel_pending(me), 0)) cancel_self();
}

bool cancel_is_asynchronous(FiberRecord* me) { return state_of(me).asynchronous.load(std::memory_order_relaxed); }

void cancel_if_asynchronous() {
  FiberRecord* me = tls_current;
  if (me && !in_wait(me) && asynchronous_and_pending(me)) cancel_self();
}

bool end_one_wait(FiberRecord* me, bool now) {
  bool& ended = state_of(me).ended_one;
  if (!end_pending(me)) ended = false;
  bool before = ended;
  if (now) ended = true;
  return !before;
}

void cancel_begin_exit(FiberRecord* me) {
  state_of(me).exiting.store(true, std::memory_order_relaxed);
  // One that is set from now on ends no wait: it is not acted upon any more.
  constexpr uint32_t kBoth = kInterruptCancel | kInterruptLeave;
  if (me->interrupts.load(std::memory_order_relaxed) & kBoth) me->interrupts.fetch_and(~kBoth, std::memory_order_relaxed);
}

namespace {

// One of libc's own threads is cancelled as libc does it, but that the signal is ours: it is noted in the TCB, and the signal is sent
// only to who may be stopped anywhere, as each waiting call of libc's may. Waits of ours end by the interrupt.
int cancel_foreign(pthread_t t) {
  void* tcb = reinterpret_cast<void*>(t);
  auto tid = static_cast<int>(__atomic_load_n(tcb_tid(tcb), __ATOMIC_RELAXED));
  if (tid <= 0) return 0;  // it has ended
  find_fields();
  __atomic_fetch_or(tcb_cancelhandling(tcb), kLibcCanceled, __ATOMIC_SEQ_CST);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (FiberRecord* f = tcb_fiber(tcb)) {
    Cancellation& s = state_of(f);
    s.requested.store(true, std::memory_order_seq_cst);
    // As for a fiber: should it be Busy when the signal comes, it looks afterwards.
    interrupt(f, kInterruptCancel | (s.asynchronous.load(std::memory_order_seq_cst) ? uint32_t{kInterruptSignal} : 0));
  }
  if (type_field.is_set(tcb) && !state_field.is_set(tcb)) raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), tid, kPreemptSignal);
  return 0;
}

// In the handler, on such a thread: unwinds from here, through the kernel's frame.
void foreign_poked(void* context) {
  void* tcb = reinterpret_cast<void*>(pthread_self());
  uint32_t handling = __atomic_load_n(tcb_cancelhandling(tcb), __ATOMIC_SEQ_CST);
  if (!(handling & kLibcCanceled) || handling & kLibcExiting || !type_field.is_set(tcb) || state_field.is_set(tcb) || tls_busy) return;
  if (tls_current && tls_current->queued) return;  // others may find its stack
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&static_cast<ucontext_t*>(context)->uc_sigmask), 0, 8);
  if (FiberRecord* me = tls_current) cancel_begin_exit(me);
  REAL(pthread_exit)(PTHREAD_CANCELED);
}

}  // namespace

void cancel_poked(siginfo_t*, void* context) {
  FiberRecord* me = tls_current;
  if (!me || me->kernel) {
    if (sched_started()) foreign_poked(context);
    return;
  }
  if (in_wait(me) || !cancel_pending(me)) return;
  if (!state_of(me).asynchronous.load(std::memory_order_relaxed) && !libc_is_asynchronous(me)) return;
  if (!inject_call(context, cancel_self)) signal_look_again(context);
}

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int pthread_cancel(pthread_t t) {
  if (!sched_started()) return REAL(pthread_cancel)(t);
  FiberRecord* f = fiber_of(t);
  // libc's would take our signal for its own.
  if (!f && pthread_equal(t, pthread_self())) f = self();
  if (!f) return stale_handle(t) ? ESRCH : cancel_foreign(t);
  if (f->done.load(std::memory_order_acquire)) return 0;
  find_fields();
  Cancellation& s = state_of(f);
  s.requested.store(true, std::memory_order_seq_cst);
  __atomic_fetch_or(tcb_cancelhandling(f->tcb), kLibcCanceled, __ATOMIC_SEQ_CST);
  if (f == self()) {
    cancel_if_asynchronous();
    return 0;
  }
  // The signal bit brings it to where asynchronous cancellation is looked for, should it not be running.
  interrupt(f, kInterruptCancel | (s.asynchronous.load(std::memory_order_seq_cst) ? uint32_t{kInterruptSignal} : 0));
  // With cancellation off, the signal would only end calls that no handler lets go on, like poll(). Who turns it on looks at
  // the request afterwards.
  if (!f->kernel && !s.disabled.load(std::memory_order_seq_cst) && f->state.load(std::memory_order_seq_cst) == State::Running) {
    if (Worker* w = __atomic_load_n(&f->worker, __ATOMIC_RELAXED))
      raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), w->tid, kPreemptSignal);
  }
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
  int e = REAL(pthread_setcanceltype)(type, old);
  if (FiberRecord* me = sched_started() ? self() : tls_current; e == 0 && me) {
    // Then looked for a request, as who requests looks at it afterwards.
    state_of(me).asynchronous.exchange(type == PTHREAD_CANCEL_ASYNCHRONOUS, std::memory_order_seq_cst);
    cancel_if_asynchronous();
  }
  return e;
}
