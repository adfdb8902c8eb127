// sem_*. A private semaphore is one 64-bit word {waiting: 1, value: 32} in glibc's place; a post with somebody waiting hands
// over directly. Shared and named ones are libc's.
#include <errno.h>
#include <limits.h>
#include <semaphore.h>

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
  uint32_t shared;  // glibc's `private`: 0, or 128 for a shared one
};
static_assert(sizeof(Semaphore) <= sizeof(sem_t));
constexpr uint64_t kWaiting = uint64_t{1} << 32;

Semaphore& of(sem_t* s) { return *reinterpret_cast<Semaphore*>(s); }
bool is_shared(sem_t* s) { return of(s).shared != 0; }
uint32_t value_in(uint64_t w) { return static_cast<uint32_t>(w); }

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

int wait_on(sem_t* sem, clockid_t clock, const timespec* t, bool timed) {
  Semaphore& s = of(sem);
  Fiber* me = self();
  test_cancel();
  for (;;) {
    if (try_wait(s)) return 0;
    if (timed && !valid(*t)) return fail(EINVAL);
    Waiter w;
    auto still_zero = [&] {
      uint64_t now = s.word.load(std::memory_order_relaxed);
      while (value_in(now) == 0)
        if (s.word.compare_exchange_weak(now, now | kWaiting, std::memory_order_relaxed)) return true;
      return false;
    };
    WakeReason r = park(sem, w, still_zero, {"semaphore", sem}, deadline_from(clock, t), wait_interrupts(me, kInterruptSignal));
    if (r == WakeReason::Woken) return 0;  // handed over
    if (r == WakeReason::Interrupted) {
      test_cancel();
      if (timed || !signal_restarts(me)) return fail(EINTR);
    }
    if (r == WakeReason::TimedOut && reached(clock, t)) return fail(ETIMEDOUT);
  }
}

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
    // Our last touch: who takes the value may destroy the semaphore.
    if (s.word.compare_exchange_weak(w, w + 1, std::memory_order_release, std::memory_order_relaxed)) return 0;
  }
  WakeList list;
  {
    LockedQueue q(sem);
    if (Waiter* first = q.first()) {
      list.add(q, *first);
      // The value is 0 and only posts raise it, which come here one at a time.
      if (!q.first()) s.word.fetch_and(~kWaiting, std::memory_order_relaxed);
    } else {
      w = s.word.load(std::memory_order_relaxed);
      for (;;) {
        if (value_in(w) == SEM_VALUE_MAX) return fail(EOVERFLOW);
        if (s.word.compare_exchange_weak(w, (w + 1) & ~kWaiting, std::memory_order_release, std::memory_order_relaxed)) break;
      }
    }
  }
  list.wake_all();
  return 0;
}

FIBERTHREAD_EXPORT int sem_trywait(sem_t* sem) noexcept {
  if (is_shared(sem)) return REAL(sem_trywait)(sem);
  return try_wait(of(sem)) ? 0 : fail(EAGAIN);
}

FIBERTHREAD_EXPORT int sem_wait(sem_t* sem) {
  if (is_shared(sem)) return REAL(sem_wait)(sem);
  return wait_on(sem, CLOCK_MONOTONIC, nullptr, false);
}

FIBERTHREAD_EXPORT int sem_timedwait(sem_t* sem, const timespec* t) {
  if (is_shared(sem)) return REAL(sem_timedwait)(sem, t);
  return wait_on(sem, CLOCK_REALTIME, t, true);
}

FIBERTHREAD_EXPORT int sem_clockwait(sem_t* sem, clockid_t clock, const timespec* t) {
  if (is_shared(sem)) return REAL(sem_clockwait)(sem, clock, t);
  if (!is_wait_clock(clock)) return fail(EINVAL);
  return wait_on(sem, clock, t, true);
}

FIBERTHREAD_EXPORT int sem_getvalue(sem_t* sem, int* value) noexcept {
  if (is_shared(sem)) return REAL(sem_getvalue)(sem, value);
  *value = static_cast<int>(value_in(of(sem).word.load(std::memory_order_relaxed)));
  return 0;
}
