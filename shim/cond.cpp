// SPDX-License-Identifier: MIT
// pthread_cond_*. Waiters stand in the parking lot under the object's address. Of the object itself only a flag is used, and the word in
// which libc keeps what the attributes say. Process-shared ones are libc's, except for waits with a private mutex.
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "sched/glibc/cond.h"
#include "sched/observe/waits.h"
#include "sched/scheduler.h"
#include "shim/cancel.h"
#include "shim/export.h"
#include "shim/mutex.h"
#include "shim/real.h"
#include "shim/time.h"
#include "shim/user_memory.h"
#include "sync/parking_lot.h"

namespace fiberthread {
namespace {

[[gnu::constructor]] void find_flags() {
  auto init = reinterpret_cast<decltype(&::pthread_cond_init)>(find_real("pthread_cond_init"));
  if (!init || !libc_find_cond_flags(init)) options.refused = "libc's condition variables have another form";
}

unsigned flags_of(const pthread_cond_t* c) { return __atomic_load_n(libc_cond_flags(c), __ATOMIC_RELAXED); }

// Each waiter sets it under the bucket lock, before it releases the mutex. It is cleared under that lock when the queue is empty. So a
// thread that signals after it has held the mutex sees it. It may stay set after a timeout.
std::atomic<uint32_t>& waiting(pthread_cond_t* c) { return *reinterpret_cast<std::atomic<uint32_t>*>(c); }

// libc would take a private mutex, which is in our format, for one of its own. Only this process can use such a mutex. So a thread that
// waits with it for a shared object stands in the parking lot as well. A thread that signals looks there only if there are such waits.
constinit std::atomic<uint32_t> shared_waits{0};

bool is_libcs(const pthread_cond_t* c, const pthread_mutex_t* mutex) {
  constexpr int kSharedMutex = 128;
  int kind = __atomic_load_n(&mutex->__data.__kind, __ATOMIC_RELAXED);
  return flags_of(c) & kLibcCondShared && kind >= 0 && kind & kSharedMutex;
}

// Cancellation unwinds this. The thread then ends with the tid that libc knows it by, since its cleanup handlers have such mutexes to
// unlock.
template <class Wait>
int wait_libcs(pthread_mutex_t* mutex, Wait wait) {
  AsKernelThread as(mutex_use(mutex));
  Blocking blocking;
  return wait();
}

int wait_on(pthread_cond_t* c, pthread_mutex_t* mutex, clockid_t clock, const timespec* t) {
  FiberRecord* me = self();
  bool shared = flags_of(c) & kLibcCondShared;
  if (t && !valid(*t)) return EINVAL;
  if (int e = mutex_check_release(mutex, me)) return e;
  test_cancel();
  Waiter w;
  w.requeue_to = mutex_requeue_address(mutex);
  auto enqueue = [&] {
    // Relaxed: the mutex orders either store before the look of a thread that signals.
    if (shared) shared_waits.fetch_add(1, std::memory_order_relaxed);
    else waiting(c).store(1, std::memory_order_relaxed);
    return true;
  };
  // Only the plain kind can be part of a deadlock. In the others another process may signal, or the deadline ends the wait.
  const char* what = shared ? "cond (process-shared)" : t ? "cond (timed)" : "cond";
  uint32_t interrupts = wait_interrupts(me);
  // Until the mutex is ours again, a handler can abandon nothing here except park(). Mutexes of libc's are left out, since a call to lock
  // one may take long.
  const bool whole = !mutex_is_libcs(mutex);
  if (whole) me->wait.pins++;
  if (__builtin_expect(end_pending(me), 0) && !end_may_end_wait(me)) interrupts &= ~uint32_t{kInterruptEnd};
  WakeReason r = park(
      c, w, enqueue, [mutex] { mutex_unlock_to_wait(mutex); }, {.what = what, .object = &w, .plain = true}, deadline_from(clock, t),
      interrupts);
  // From here on the object may be gone.
  if (shared) shared_waits.fetch_sub(1, std::memory_order_relaxed);
  bool cancelled = r == WakeReason::Interrupted && cancel_pending(me);
  if (r == WakeReason::Interrupted && !cancelled) end_has_ended_wait(me);
  if (cancelled) cancel_begin_exit(me);  // from now on nothing may end the wait for the mutex
  int e = mutex_relock(mutex, me, r == WakeReason::Woken ? w.token : 0);
  if (whole) wait_over(me);
  if (cancelled) cancel_self();
  // It is early only if the clock was set meanwhile. Then this is a spurious wake-up.
  if (e == 0 && r == WakeReason::TimedOut && reached(clock, t)) return ETIMEDOUT;
  return e;
}

// For reports. A broadcast may have moved the waiter to the mutex. The waiter is on the stack of a fiber that may have gone on.
void look(ParkReason& r) {
  alignas(Waiter) unsigned char copy[sizeof(Waiter)];
  if (fiberthread_user_copy(copy, r.object, sizeof copy) != 0) return;
  auto& w = *reinterpret_cast<const Waiter*>(copy);
  r.object = w.address;
  if (w.requeued) r.what = "mutex";
}
WaitLook cond_look{"cond", look};
[[gnu::constructor]] void register_look() { wait_look_by(cond_look); }

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int pthread_cond_init(pthread_cond_t* c, const pthread_condattr_t* attr) noexcept {
  int shared = PTHREAD_PROCESS_PRIVATE;
  clockid_t clock = CLOCK_REALTIME;
  if (attr) {
    pthread_condattr_getpshared(attr, &shared);
    pthread_condattr_getclock(attr, &clock);
    if (shared == PTHREAD_PROCESS_SHARED) return REAL(pthread_cond_init)(c, attr);
  }
  memset(c, 0, sizeof *c);
  if (clock == CLOCK_MONOTONIC) *libc_cond_flags(c) = kLibcCondMonotonic;
  return 0;
}

FIBERTHREAD_EXPORT int pthread_cond_destroy(pthread_cond_t* c) noexcept {
  if (flags_of(c) & kLibcCondShared) return REAL(pthread_cond_destroy)(c);
  return 0;
}

FIBERTHREAD_EXPORT int pthread_cond_wait(pthread_cond_t* c, pthread_mutex_t* mutex) {
  if (is_libcs(c, mutex)) return wait_libcs(mutex, [=] { return REAL(pthread_cond_wait)(c, mutex); });
  return wait_on(c, mutex, CLOCK_MONOTONIC, nullptr);
}

FIBERTHREAD_EXPORT int pthread_cond_timedwait(pthread_cond_t* c, pthread_mutex_t* mutex, const timespec* t) {
  clockid_t clock = flags_of(c) & kLibcCondMonotonic ? CLOCK_MONOTONIC : CLOCK_REALTIME;
  if (is_libcs(c, mutex))
    return wait_libcs(mutex, [=] { return in_kernel_time(clock, t, [=](auto t) { return REAL(pthread_cond_timedwait)(c, mutex, t); }); });
  return wait_on(c, mutex, clock, t);
}

FIBERTHREAD_EXPORT int pthread_cond_clockwait(pthread_cond_t* c, pthread_mutex_t* mutex, clockid_t clock, const timespec* t) {
  if (is_libcs(c, mutex))
    return wait_libcs(mutex,
                      [=] { return in_kernel_time(clock, t, [=](auto t) { return REAL(pthread_cond_clockwait)(c, mutex, clock, t); }); });
  if (!is_wait_clock(clock)) return EINVAL;
  return wait_on(c, mutex, clock, t);
}

FIBERTHREAD_EXPORT int pthread_cond_signal(pthread_cond_t* c) noexcept {
  if (flags_of(c) & kLibcCondShared) {
    int e = REAL(pthread_cond_signal)(c);
    if (shared_waits.load(std::memory_order_relaxed)) unpark_waiters(c, 1);
    return e;
  }
  // Relaxed: a waiter that must be seen set it before it unlocked the mutex, which the caller has held since.
  if (!waiting(c).load(std::memory_order_relaxed)) return 0;
  WakeList list;
  {
    LockedQueue q(c);
    if (q.first()) list.add(q, *q.first());
    if (!q.first()) waiting(c).store(0, std::memory_order_relaxed);
  }
  list.wake_all();
  return 0;
}

FIBERTHREAD_EXPORT int pthread_cond_broadcast(pthread_cond_t* c) noexcept {
  if (flags_of(c) & kLibcCondShared) {
    int e = REAL(pthread_cond_broadcast)(c);
    if (shared_waits.load(std::memory_order_relaxed)) unpark_all(c);
    return e;
  }
  if (!waiting(c).load(std::memory_order_relaxed)) return 0;
  const void* to;
  {
    LockedQueue q(c);
    waiting(c).store(0, std::memory_order_relaxed);  // our last access to the object
    Waiter* first = q.first();
    if (!first) return 0;
    to = first->requeue_to;
  }
  // A waiter that comes in between is woken as well, which is a spurious wake-up.
  if (to) requeue_waiters(c, to, mutex_expect_waiters, const_cast<void*>(to));
  else unpark_all(c);
  return 0;
}
