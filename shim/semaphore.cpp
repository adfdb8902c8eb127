// SPDX-License-Identifier: MIT
// sem_*. A private semaphore is one 64-bit word in the place of glibc's. One more bit of it is ours: {waiting: 1, libc's waiters: 31,
// value: 32}. If a thread waits, a post hands the permit over directly. Shared and named semaphores are libc's.
//
// While the scheduler does not run, waits are libc's. Signals go straight to the program then, so only the kernel can end a wait for one.
// And a handler that posts must find no lock of ours held. A wait of libc's may still go on when the scheduler starts, on a thread that
// libc made for itself. So our posts wake libc's waiters too.
#include <errno.h>
#include <limits.h>
#include <semaphore.h>

#include "sched/syscall.h"
#include "sched/scheduler.h"
#include "shim/cancel.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/signal.h"
#include "shim/time.h"
#include "sync/parking_lot.h"

namespace fiberthread {
namespace {

struct Semaphore {
  std::atomic<uint64_t> word;
  uint32_t shared;  // glibc's `private`: 0, or 128 for a shared semaphore
};
static_assert(sizeof(Semaphore) <= sizeof(sem_t));
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);  // libc's futex is the first half of the word
// Set and cleared under the bucket lock. The bit stays when the last waiter is woken, since that waiter is likely to wait again. The first
// post that finds the queue empty clears it.
constexpr uint64_t kWaiting = uint64_t{1} << 63;

Semaphore& of(sem_t* s) { return *reinterpret_cast<Semaphore*>(s); }
bool is_shared(sem_t* s) { return of(s).shared != 0; }
bool wait_is_libcs(sem_t* s) { return is_shared(s) || !sched_started(); }
uint32_t value_in(uint64_t w) { return static_cast<uint32_t>(w); }
bool libc_waits(uint64_t w) { return (w & ~kWaiting) >> 32; }

bool try_wait(Semaphore& s) {
  uint64_t w = s.word.load(std::memory_order_relaxed);
  while (value_in(w) > 0)
    if (s.word.compare_exchange_weak(w, w - 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
  return false;
}

int fail(int e) {
  errno = e;
  return -1;
}

bool likely_to_wait(sem_t* sem) { return value_in(of(sem).word.load(std::memory_order_relaxed)) == 0; }

// Without `t`, waits for ever.
int wait_on(sem_t* sem, clockid_t clock = CLOCK_MONOTONIC, const timespec* t = nullptr, void (*test)() = test_cancel_as_libc) {
  Semaphore& s = of(sem);
  FiberRecord* me = self();
  test();
  for (;;) {
    if (try_wait(s)) return 0;
    Waiter w;
    HandlersBefore handlers;
    auto still_zero = [&] {
      uint64_t now = s.word.load(std::memory_order_relaxed);
      while (value_in(now) == 0)
        if (now & kWaiting || s.word.compare_exchange_weak(now, now | kWaiting, std::memory_order_relaxed)) return true;
      return false;
    };
    const char* what = t ? "semaphore (timed)" : "semaphore";
    WakeReason r = park(sem, w, still_zero, {what, sem}, deadline_from(clock, t), wait_interrupts(me, kInterruptSafePoint));
    if (r == WakeReason::Woken) return 0;  // handed over
    if (r == WakeReason::Interrupted) {
      test_cancel();
      if (end_pending(me)) return fail(ECANCELED);
      if (!handlers.none_since() && (t || !signal_restarts(me))) return fail(EINTR);
    }
    if (r == WakeReason::TimedOut && reached(clock, t)) return fail(ETIMEDOUT);
  }
}

int timed_wait_on(sem_t* sem, clockid_t clock, const timespec* t, void (*test)()) {
  return valid(*t) ? wait_on(sem, clock, t, test) : fail(EINVAL);  // checked at once, as in NPTL
}

// A handler may post to a shared semaphore, and must not be the first to look up libc's function.
[[gnu::constructor]] void resolve_for_handlers() { (void)REAL(sem_post); }

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int sem_init(sem_t* sem, int shared, unsigned value) noexcept {
  if (shared) return REAL(sem_init)(sem, shared, value);
  if (value > SEM_VALUE_MAX) return fail(EINVAL);
  of(sem).word.store(value, std::memory_order_relaxed);
  of(sem).shared = 0;
  return 0;
}

FIBERTHREAD_EXPORT int sem_destroy(sem_t*) noexcept { return 0; }

FIBERTHREAD_EXPORT int sem_post(sem_t* sem) noexcept {
  if (is_shared(sem)) return REAL(sem_post)(sem);
  Semaphore& s = of(sem);
  uint64_t w = s.word.load(std::memory_order_relaxed);
  while (!(w & kWaiting)) {
    if (value_in(w) == SEM_VALUE_MAX) return fail(EOVERFLOW);
    // This is our last access. The thread that takes the permit may destroy the semaphore.
    if (s.word.compare_exchange_weak(w, w + 1, std::memory_order_release, std::memory_order_relaxed)) {
      if (__builtin_expect(libc_waits(w), 0)) futex_wake(sem, 1);
      return 0;
    }
  }
  bool wake_libc = false;
  WakeList list;
  {
    LockedQueue q(sem);
    if (Waiter* first = q.first()) {
      list.add(q, *first);
    } else {
      w = s.word.load(std::memory_order_relaxed);
      for (;;) {
        if (value_in(w) == SEM_VALUE_MAX) return fail(EOVERFLOW);
        if (s.word.compare_exchange_weak(w, (w + 1) & ~kWaiting, std::memory_order_release, std::memory_order_relaxed)) break;
      }
      wake_libc = libc_waits(w);
    }
  }
  list.wake_all();
  if (wake_libc) futex_wake(sem, 1);
  return 0;
}

FIBERTHREAD_EXPORT int sem_trywait(sem_t* sem) noexcept {
  if (is_shared(sem)) return REAL(sem_trywait)(sem);
  return try_wait(of(sem)) ? 0 : fail(EAGAIN);
}

FIBERTHREAD_EXPORT int sem_wait(sem_t* sem) {
  if (wait_is_libcs(sem)) {
    Blocking blocking(likely_to_wait(sem));
    return REAL(sem_wait)(sem);
  }
  return wait_on(sem);
}

FIBERTHREAD_EXPORT int sem_timedwait(sem_t* sem, const timespec* t) {
  if (wait_is_libcs(sem)) {
    Blocking blocking(likely_to_wait(sem));
    return despite_others([&] { return in_kernel_time(CLOCK_REALTIME, t, [&](auto t) { return REAL(sem_timedwait)(sem, t); }); });
  }
  return timed_wait_on(sem, CLOCK_REALTIME, t, test_cancel_as_libc);
}

FIBERTHREAD_EXPORT int sem_clockwait(sem_t* sem, clockid_t clock, const timespec* t) {
  if (!is_wait_clock(clock)) return fail(EINVAL);
  if (wait_is_libcs(sem)) {
    Blocking blocking(likely_to_wait(sem));
    return despite_others([&] { return in_kernel_time(clock, t, [&](auto t) { return REAL(sem_clockwait)(sem, clock, t); }); });
  }
  return timed_wait_on(sem, clock, t, test_cancel);
}

FIBERTHREAD_EXPORT int sem_getvalue(sem_t* sem, int* value) noexcept {
  if (is_shared(sem)) return REAL(sem_getvalue)(sem, value);
  *value = static_cast<int>(value_in(of(sem).word.load(std::memory_order_relaxed)));
  return 0;
}
