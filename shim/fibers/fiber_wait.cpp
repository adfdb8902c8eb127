// SPDX-License-Identifier: MIT
// Fibers that wait: yield, wakeup, sleep, cancel, join.
#include "sched/cord.h"
#include "sched/life/join.h"
#include "sched/memory/block.h"
#include "sched/wait.h"
#include "shim/fibers/fiber_handle.h"
#include "shim/real.h"
#include "shim/thread.h"

namespace fiberthread {
namespace {

bool ended_by_cancel(FiberRecord* me) { return me->run.interrupts.load(std::memory_order_relaxed) & kInterruptEnd; }

StillNamed named(const fiberthread_t& h) {
  return {[](FiberRecord* f, const void* handle) { return is_still(f, *static_cast<const fiberthread_t*>(handle)); }, &h};
}

bool lives(FiberRecord* f, const void* handle) {
  bool done = f->join.done.load(std::memory_order_acquire);
  return is_still(f, *static_cast<const fiberthread_t*>(handle)) && !done;
}

int wait_for_wakeup(FiberRecord* me, uint64_t deadline, const char* what) {
  uint32_t mark = me->identity.serial + 1;
  for (;;) {
    uint32_t woken = me->handle.woken.load(std::memory_order_relaxed);
    if (woken == mark) {
      me->handle.woken.exchange(0, std::memory_order_acquire);  // Acquire: we see what the waker did before
      return 0;
    }
    if (ended_by_cancel(me)) return ECANCELED;
    if (passed(me, deadline)) return ETIMEDOUT;
    park_if(&me->handle.woken, woken, {what}, deadline);
  }
}

int yield_until(uint64_t deadline, const char* what) {
  FiberRecord* me = self();
  if (in_cord_callback()) return EPERM;
  if (deadline == 0) give_way();
  int e = wait_for_wakeup(me, deadline, what);
  // A caller in fiberthread_call() goes on at the first yield, even if there was nothing to wait for.
  if (__builtin_expect(me->wait.called_by.load(std::memory_order_relaxed) != nullptr, 0)) give_way();
  return e;
}

int join(fiberthread_t h, void** result, uint64_t deadline) {
  FiberRecord* f = record_of(h);
  if (!is_still(f, h)) return ESRCH;
  FiberRecord* me = self();
  if (f != me && f->run.kernel && !is_nptl(f)) return EINVAL;
  if (int e = join_register(me, f, named(h))) return e;
  // join_wait() only sees interrupts that come from now on.
  if (!f->join.done.load(std::memory_order_acquire) && ended_by_cancel(me) && join_withdraw(f)) {
    wait_over(me);
    return ECANCELED;
  }
  bool nptl = f->run.kernel;
  void* value;
  bool joined = join_wait(f, &value, deadline, kInterruptEnd | kInterruptLeave);
  wait_over(me);
  if (!joined) return ended_by_cancel(me) ? ECANCELED : ETIMEDOUT;
  if (nptl) {
    REAL(pthread_join)(reinterpret_cast<pthread_t>(f->memory.tcb), &value);  // the thread is about to end
    kernel_record_put(f);
  }
  if (result) *result = value;
  return 0;
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_API int fiberthread_yield(void) { return yield_until(kNever, "yield"); }

FIBERTHREAD_API int fiberthread_yield_timeout(uint64_t timeout_ns) {
  return yield_until(timeout_ns ? deadline_in(timeout_ns) : 0, "yield (timed)");
}

FIBERTHREAD_API int fiberthread_wakeup(fiberthread_t fiber) {
  FiberRecord* f = record_of(fiber);
  if (!is_still(f, fiber)) return ESRCH;
  if (f == tls_current || f->handle.fresh.load(std::memory_order_relaxed) || f->join.done.load(std::memory_order_relaxed)) return 0;
  // The mark names this very fiber. If it ends just now, the record's next fiber ignores the mark. But the mark must not overwrite a
  // wake-up of that next fiber. So the serial is checked after `seen` was loaded.
  uint32_t mark = static_cast<uint32_t>(f->identity.serial) + 1, seen = f->handle.woken.load(std::memory_order_acquire);
  do {
    if (handle_of(f) != fiber) return 0;
  } while (!f->handle.woken.compare_exchange_weak(seen, mark, std::memory_order_seq_cst, std::memory_order_acquire));
  if (seen != mark) unpark_in_order(f);
  return 0;
}

FIBERTHREAD_API void fiberthread_reschedule(void) { fiberthread::give_way(); }

FIBERTHREAD_API int fiberthread_sleep(uint64_t timeout_ns) {
  static const std::atomic<uint32_t> never{0};
  FiberRecord* me = self();
  if (in_cord_callback()) return EPERM;
  uint64_t deadline = timeout_ns ? deadline_in(timeout_ns) : 0;
  if (timeout_ns == 0) fiberthread::give_way();
  for (;;) {
    if (ended_by_cancel(me)) return ECANCELED;
    if (passed(me, deadline)) return 0;
    park_if(&never, 0, {.what = "sleep", .plain = true}, deadline);
  }
}

FIBERTHREAD_API int fiberthread_cancel(fiberthread_t fiber) {
  FiberRecord* f = record_of(fiber);
  if (!is_still(f, fiber)) return ESRCH;
  if (end_waits_of(f, lives, &fiber)) return 0;
  return is_still(f, fiber) ? 0 : ESRCH;  // 0: the fiber has ended, and was not joined
}

FIBERTHREAD_API int fiberthread_cancelled(void) { return ended_by_cancel(self()); }

FIBERTHREAD_API int fiberthread_set_cancellable(int cancellable) { return !hold_end(self(), !cancellable); }

FIBERTHREAD_API int fiberthread_set_joinable(fiberthread_t fiber, int joinable) {
  FiberRecord* f = record_of(fiber);
  if (!is_still(f, fiber)) return ESRCH;
  if (f == main_fiber || (f->run.kernel && !is_nptl(f))) return EINVAL;
  switch (join_set_detached(f, !joinable, named(fiber))) {
    case Detached::Gone: return ESRCH;
    case Detached::HasJoiner: return EBUSY;
    case Detached::Before:
    case Detached::Now: return 0;
    case Detached::Ended: break;
  }
  if (f->run.kernel) {
    REAL(pthread_detach)(reinterpret_cast<pthread_t>(f->memory.tcb));
    kernel_record_put(f);
  } else {
    Busy busy;
    block_put(f);
  }
  return 0;
}

FIBERTHREAD_API int fiberthread_join(fiberthread_t fiber, void** result) { return fiberthread::join(fiber, result, kNever); }

FIBERTHREAD_API int fiberthread_join_timeout(fiberthread_t fiber, void** result, uint64_t timeout_ns) {
  return fiberthread::join(fiber, result, deadline_in(timeout_ns));
}
