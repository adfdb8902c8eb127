// pthread_cancel and its settings.
//
// A request is noted here and in libc's own word (CANCELED), which makes libc's own cancellation points act: its
// read() and the like look at that before they wait. A fiber that is parked is woken, and its wait ends. One that may be asleep in
// the kernel, in a call of libc's own, is sent the scheduler's signal. What that does depends on the libc:
// - Up to glibc 2.40, libc makes cancellation asynchronous around each of its waiting system calls. The fiber is made to call
//   cancel_self() as if it had done so itself at that point.
// - From 2.41 on, all of them are made in one small function (LibcWait). If the signal finds the fiber there, and the system call not
//   made, the call ends with EINTR. libc then looks for a request, and acts. A call that has ended by itself is left alone, so that
//   nothing it has done is lost.
#include "shim/cancel.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/select.h>
#include <ucontext.h>

#include "sched/arch/arch.h"
#include "sched/glibc/tcb.h"
#include "sched/life/fork.h"
#include "sched/preempt.h"
#include "sched/syscall.h"
#include "sched/worker.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/signal.h"
#include "shim/thread.h"
#include "shim/user_memory.h"

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
    // All of it: glibc 2.34 and 2.35 have these two at its very end.
    unsigned char before[4096];
    const size_t size = tcb_size() < sizeof before ? tcb_size() : sizeof before;
    auto* tcb = static_cast<volatile unsigned char*>(self()->tcb);
    Busy busy;
    int old;
    for (size_t i = 0; i < size; i++) before[i] = tcb[i];
    if (set(value, &old) != 0) return;
    int32_t at = -1;
    for (size_t i = 0; i < size && at < 0; i++)
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

// ---- where libc waits, from 2.41 on ----

#if defined(__x86_64__)
constexpr uintptr_t kCallSize = 2;
// Of a function that has pushed nothing yet.
uintptr_t return_address(const ucontext_t* uc) { return *reinterpret_cast<uintptr_t*>(uc->uc_mcontext.gregs[REG_RSP]); }
void go_on_at(ucontext_t* uc, uintptr_t pc, long result) {
  uc->uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(pc);
  uc->uc_mcontext.gregs[REG_RAX] = result;
}
bool is_system_call(uintptr_t at) { return memcmp(reinterpret_cast<void*>(at), "\x0f\x05", kCallSize) == 0; }
// What the direct call before that address calls. 0: there is none.
uintptr_t called_before(uintptr_t back) {
  unsigned char call[8];
  constexpr int kCode = 3;
  if (!copy_user(&call, reinterpret_cast<decltype(call)*>(back - sizeof call)) || call[kCode] != 0xe8) return 0;
  int32_t distance;
  memcpy(&distance, call + kCode + 1, sizeof distance);
  return back + static_cast<uintptr_t>(static_cast<intptr_t>(distance));
}
#else
constexpr uintptr_t kCallSize = 4;
uintptr_t return_address(const ucontext_t* uc) { return uc->uc_mcontext.regs[30]; }
void go_on_at(ucontext_t* uc, uintptr_t pc, long result) {
  uc->uc_mcontext.pc = pc;
  uc->uc_mcontext.regs[0] = static_cast<uint64_t>(result);
}
bool is_system_call(uintptr_t at) { return *reinterpret_cast<uint32_t*>(at) == 0xd4000001; }  // svc #0
uintptr_t called_before(uintptr_t back) {
  uint32_t call;
  if (!copy_user(&call, reinterpret_cast<uint32_t*>(back - sizeof call)) || call >> 26 != 0x25) return 0;  // bl
  return back - sizeof call + static_cast<uintptr_t>(static_cast<intptr_t>(static_cast<int32_t>(call << 6) >> 4));
}
#endif

// The function in which libc makes the system calls of its cancellation points: it looks for a request, and makes the call. Nothing that is
// on the stack changes in it. `end` is where it goes on after the call; 0: there is no such function.
//
// It is found by experiment: a signal ends two different calls of libc's, and finds both at one and the same place.
struct LibcWait {
  std::atomic<uintptr_t> begin{0}, end{0};

  // With the system call not made yet, or to be made anew? `end` is written last, so with it `begin` is seen.
  bool holds(uintptr_t pc) const {
    uintptr_t e = end.load(std::memory_order_acquire), b = begin.load(std::memory_order_relaxed);
    return pc - b < e - b;
  }
};
LibcWait libc_wait;

// What the signal has found. Written in its handler, on the thread that reads it.
struct Found {
  uintptr_t pc, back;
  bool asynchronous;
};
Found found;
// The thread that makes the experiment. Relaxed, as only that thread has to see itself there.
std::atomic<pthread_t> finder{0};
std::atomic<bool> looked{false};  // release: libc_wait is as it stays
SpinLock find_lock;

// `wait`(mask) waits for a second, with that mask.
Found signal_in(void (*wait)(const sigset_t*), const sigset_t* mask) {
  found = {};
  if (raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), raw_syscall(SYS_gettid), kPreemptSignal) == 0) wait(mask);
  return found;
}

void find_libc_wait() {
  if (looked.load(std::memory_order_acquire)) return;
  void* tcb = self()->tcb;
  Busy busy;
  OwnCalls calls;
  SpinGuard guard(find_lock);
  if (looked.load(std::memory_order_relaxed)) return;
  int error = errno;
  uint64_t all = ~kTrapSignal, before;
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&all), arg(&before), 8);
  // libc must take the caller for one that may be cancelled and is not. Nobody else writes these bits: pthread_cancel() begins here.
  constexpr uint32_t kEnds = kLibcCanceled | kLibcExiting;
  uint32_t handling = __atomic_fetch_and(tcb_cancelhandling(tcb), ~kEnds, __ATOMIC_SEQ_CST) & kEnds;
  int state, type;
  REAL(pthread_setcanceltype)(PTHREAD_CANCEL_DEFERRED, &type);
  REAL(pthread_setcancelstate)(PTHREAD_CANCEL_ENABLE, &state);
  finder.store(pthread_self(), std::memory_order_relaxed);
  sigset_t mask;
  memset(&mask, 0, sizeof mask);
  uint64_t others = all & ~(uint64_t{1} << (kPreemptSignal - 1));
  memcpy(&mask, &others, sizeof others);
  constexpr static timespec kSecond = {1, 0};
  Found a = signal_in([](const sigset_t* m) { REAL(ppoll)(nullptr, 0, &kSecond, m); }, &mask);
  Found b = signal_in([](const sigset_t* m) { REAL(pselect)(0, nullptr, nullptr, nullptr, &kSecond, m); }, &mask);
  finder.store(0, std::memory_order_relaxed);
  REAL(pthread_setcancelstate)(state, nullptr);
  REAL(pthread_setcanceltype)(type, nullptr);
  __atomic_fetch_or(tcb_cancelhandling(tcb), handling, __ATOMIC_SEQ_CST);
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&before), 0, 8);
  errno = error;
  if (a.pc && a.pc == b.pc && !a.asynchronous && !b.asynchronous && is_system_call(a.pc - kCallSize)) {
    constexpr uintptr_t kMost = 256;
    uintptr_t begin = called_before(a.back);
    // Else a request is lost that comes between libc's look and its call.
    if (a.pc - begin < kCallSize || a.pc - begin > kMost) begin = a.pc - kCallSize;
    libc_wait.begin.store(begin, std::memory_order_relaxed);
    libc_wait.end.store(a.pc, std::memory_order_release);
    preempt_only_asleep(begin, a.pc);
  }
  looked.store(true, std::memory_order_release);
}

// If libc waits there: the call ends as if by a signal, and libc finds the request that stands in its word. By the thread itself, or in a
// handler on top of it.
bool end_libc_wait(void* tcb, ucontext_t* uc) {
  if (!libc_wait.holds(interrupted_pc(uc))) return false;
  uint32_t handling = __atomic_load_n(tcb_cancelhandling(tcb), __ATOMIC_SEQ_CST);
  if (!(handling & kLibcCanceled) || handling & kLibcExiting || state_field.is_set(tcb)) return false;
  go_on_at(uc, libc_wait.end.load(std::memory_order_relaxed), -EINTR);
  return true;
}

bool libc_unwinds(FiberRecord* me) { return __atomic_load_n(tcb_cancelhandling(me->tcb), __ATOMIC_RELAXED) & kLibcExiting; }

}  // namespace

// A kernel thread has got its record: what was asked before is in libc's place.
void cancel_adopt(FiberRecord* f) {
  Cancellation& s = state_of(f);
  if (state_field.is_set(f->tcb)) s.disabled.store(true, std::memory_order_relaxed);
  if (type_field.is_set(f->tcb)) s.asynchronous.store(true, std::memory_order_relaxed);
  // With that in cancel_foreign(): it finds the record, or we its bit.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!(__atomic_load_n(tcb_cancelhandling(f->tcb), __ATOMIC_RELAXED) & kLibcCanceled)) return;
  s.requested.store(true, std::memory_order_relaxed);
  f->interrupts.fetch_or(kInterruptUnwind, std::memory_order_seq_cst);
}

namespace {
// Its type, or that of the wait of libc's which its handler has interrupted.
bool is_asynchronous(FiberRecord* f) { return state_of(f).asynchronous.load(std::memory_order_seq_cst) || libc_is_asynchronous(f); }
}  // namespace

bool cancel_due(FiberRecord* me) { return (is_asynchronous(me) || state_of(me).leaves) && cancel_pending(me); }

bool cancel_due_at(FiberRecord* me, uintptr_t pc) {
  return !in_wait(me) && cancel_pending(me) && (cancel_due(me) || libc_wait.holds(pc));
}

void cancel_init() {
  find_fields();
  (void)REAL(syscall);  // handlers may call it
  (void)REAL(ppoll);    // and this is called under a lock
  (void)REAL(pselect);
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
  // As a libc with such a function does: cleanup handlers find cancellation disabled.
  if (!s.leaves && libc_wait.end.load(std::memory_order_relaxed)) REAL(pthread_setcancelstate)(PTHREAD_CANCEL_DISABLE, nullptr);
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
  __atomic_fetch_and(tcb_cancelhandling(me->tcb), ~kLibcExiting, __ATOMIC_RELAXED);
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
  if (!me->queued) pthread_testcancel();
  cancel_self();
}

bool cancel_is_asynchronous(FiberRecord* me) { return state_of(me).asynchronous.load(std::memory_order_relaxed); }

void cancel_if_asynchronous() {
  FiberRecord* me = tls_current;
  if (me && !in_wait(me) && cancel_due(me)) cancel_self();
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
  constexpr uint32_t kBoth = kInterruptUnwind | kInterruptLeave;
  if (me->interrupts.load(std::memory_order_relaxed) & kBoth) me->interrupts.fetch_and(~kBoth, std::memory_order_relaxed);
}

namespace {

// One of libc's own threads is cancelled as libc does it, but that the signal is ours: it is noted in the TCB, and the signal is sent
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
    // As for a fiber: should it be Busy when the signal comes, it looks afterwards.
    interrupt(f, kInterruptUnwind | (s.asynchronous.load(std::memory_order_seq_cst) ? uint32_t{kInterruptSafePoint} : 0));
  }
  bool may_wait = type_field.is_set(tcb) || libc_wait.end.load(std::memory_order_relaxed);
  if (may_wait && !state_field.is_set(tcb)) raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), tid, kPreemptSignal);
  return 0;
}

// In the handler, on such a thread: unwinds from here, through the kernel's frame, or lets libc do it.
void foreign_poked(void* context) {
  void* tcb = reinterpret_cast<void*>(pthread_self());
  if (end_libc_wait(tcb, static_cast<ucontext_t*>(context))) return;
  uint32_t handling = __atomic_load_n(tcb_cancelhandling(tcb), __ATOMIC_SEQ_CST);
  if (!(handling & kLibcCanceled) || handling & kLibcExiting || !type_field.is_set(tcb) || state_field.is_set(tcb) || tls_busy) return;
  if (tls_current && tls_current->queued) return;  // others may find its stack
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&static_cast<ucontext_t*>(context)->uc_sigmask), 0, 8);
  if (FiberRecord* me = tls_current) cancel_begin_exit(me);
  REAL(pthread_exit)(PTHREAD_CANCELED);
}

}  // namespace

void cancel_poked(siginfo_t*, void* context) {
  auto* uc = static_cast<ucontext_t*>(context);
  if (__builtin_expect(finder.load(std::memory_order_relaxed) == pthread_self(), 0)) {
    found = {interrupted_pc(uc), return_address(uc), type_field.is_set(reinterpret_cast<void*>(pthread_self()))};
    return;
  }
  FiberRecord* me = tls_current;
  if (!me || me->kernel) {
    if (sched_started()) foreign_poked(context);
    return;
  }
  if (in_wait(me) || !cancel_pending(me)) return;
  if (end_libc_wait(me->tcb, uc)) return;
  if (cancel_due_at(me, interrupted_pc(uc))) {
    if (inject_call(context, cancel_self)) return;
    me->interrupts.fetch_or(kInterruptSafePoint, std::memory_order_relaxed);  // it looks when Busy ends
  }
  signal_look_again(context);
}

void cancel_handler_over(FiberRecord* me, void* context) {
  if (cancel_pending(me)) end_libc_wait(me->tcb, static_cast<ucontext_t*>(context));
}

FIBERTHREAD_IN_FORK_CHILD(Cancel, [](FiberRecord*) {
  find_lock.reset();
  finder.store(0, std::memory_order_relaxed);
})

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int pthread_cancel(pthread_t t) {
  if (!sched_started()) return REAL(pthread_cancel)(t);
  find_fields();
  find_libc_wait();
  FiberRecord* f = fiber_of(t);
  // libc's would take our signal for its own.
  if (!f && pthread_equal(t, pthread_self())) f = self();
  if (!f) return stale_handle(t) ? ESRCH : cancel_foreign(t);
  if (f->done.load(std::memory_order_acquire)) return 0;
  Cancellation& s = state_of(f);
  s.requested.store(true, std::memory_order_seq_cst);
  __atomic_fetch_or(tcb_cancelhandling(f->tcb), kLibcCanceled, __ATOMIC_SEQ_CST);
  if (f == self()) {
    if (!in_wait(f) && cancel_due(f)) test_cancel_as_libc();
    return 0;
  }
  // The signal bit brings it to where asynchronous cancellation is looked for, should it not be running.
  interrupt(f, kInterruptUnwind | (is_asynchronous(f) ? uint32_t{kInterruptSafePoint} : 0));
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
