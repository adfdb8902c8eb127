// SPDX-License-Identifier: MIT
// sched_yield, and the calls that only let time pass. A fiber parks with a deadline; kernel threads sleep in libc's way.
#include <errno.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "sched/accounting.h"
#include "sched/scheduler.h"
#include "shim/cancel.h"
#include "shim/clock.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/signal.h"
#include "shim/time.h"
#include "shim/user_memory.h"

namespace fiberthread {
namespace {

bool in_fiber() { return sched_started() && !self()->run.kernel; }

// Waits until the deadline (0), until the wait is cancelled (ECANCELED), or until there may be a signal to handle (EINTR). The handler runs
// on return.
int sleep_until(uint64_t deadline) {
  static const std::atomic<uint32_t> never{0};
  FiberRecord* me = self();
  test_cancel();
  Busy busy;  // a signal's handler must not run before we have seen that there is one
  clear_pending_unpark(me);
  while (!passed(me, deadline)) {
    uint32_t i = me->run.interrupts.load(std::memory_order_seq_cst);
    if (i & kInterruptSafePoint) return EINTR;
    if (i & wait_interrupts(me)) return ECANCELED;
    park_if(&never, 0, {.what = "sleep", .plain = true}, deadline);
  }
  return 0;
}

int sleep_and_test(uint64_t deadline) {
  for (;;) {
    HandlersBefore handlers;
    int e = sleep_until(deadline);
    if (e == ECANCELED) test_cancel();
    if (e != EINTR || !handlers.none_since()) return e;
  }
}

// Waits until another fiber has used so much of the CPU. That takes at least as much time.
int sleep_on_cpu_clock(FiberRecord* f, int flags, const timespec* t, timespec* left) {
  if (!valid(*t) || t->tv_sec < 0 || f == self()) return EINVAL;
  if (t->tv_sec > 4'000'000'000) return sleep_and_test(kNever);
  constexpr uint64_t kLook = 1'000'000;
  uint32_t id = f->identity.id;
  bool absolute = flags & TIMER_ABSTIME;
  uint64_t until = static_cast<uint64_t>(t->tv_sec * kNsPerSec + t->tv_nsec) + (absolute ? 0 : cpu_time_of(f));
  for (;;) {
    uint64_t used = cpu_time_of(f);
    if (used >= until) return 0;
    // Once the fiber has ended, its clock stands still.
    bool ended = f->identity.id != id || f->join.done.load(std::memory_order_acquire);
    uint64_t rest = until - used, deadline = ended ? kNever : deadline_in(rest > kLook ? rest : kLook);
    if (int e = sleep_and_test(deadline)) {
      if (left && !absolute) *left = {static_cast<time_t>(rest / kNsPerSec), static_cast<long>(rest % kNsPerSec)};
      return e;
    }
  }
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int sched_yield() noexcept {
  fiberthread::give_way();
  return 0;
}

FIBERTHREAD_ALIAS(__sched_yield, sched_yield);
FIBERTHREAD_ALIAS(pthread_yield, sched_yield);

FIBERTHREAD_EXPORT int clock_nanosleep(clockid_t clock, int flags, const timespec* user_t, timespec* left) {
  timespec copy{}, *t = &copy;
  if (in_fiber() && !copy_user(t, user_t)) return EFAULT;
  if (clock < 0 && in_fiber())
    if (FiberRecord* f = owner_of_clock(clock)) return sleep_on_cpu_clock(f, flags, t, left);
  bool known = clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME || clock == CLOCK_TAI;
  if (!known) return REAL(clock_nanosleep)(clock, flags, user_t, left);
  if (!in_fiber()) {
    if (__builtin_expect(exploring, 0) && flags & TIMER_ABSTIME && user_t && valid(*user_t)) {
      timespec real = explore_kernel_time(clock, *user_t);
      int e = REAL(clock_nanosleep)(clock, flags, &real, left);
      if (e == 0) explore_waited_until(clock, *user_t);
      return e;
    }
    return for_a_time(user_t, [&] { return REAL(clock_nanosleep)(clock, flags, user_t, left); });
  }
  if (!valid(*t) || t->tv_sec < 0) return EINVAL;
  if (flags & TIMER_ABSTIME) {
    for (;;) {
      if (int e = sleep_and_test(deadline_from(clock, t))) return e;
      if (reached(clock, t)) return 0;
    }
  }
  uint64_t deadline = deadline_in(*t);
  int e = sleep_and_test(deadline);
  if (e && left) {
    copy = time_until(deadline);
    if (!copy_user(left, &copy)) return EFAULT;
  }
  return e;
}

FIBERTHREAD_EXPORT int nanosleep(const timespec* t, timespec* left) {
  if (!in_fiber()) return for_a_time(t, [&] { return REAL(nanosleep)(t, left); });
  int e = clock_nanosleep(CLOCK_MONOTONIC, 0, t, left);
  if (e == 0) return 0;
  errno = e;
  return -1;
}

FIBERTHREAD_EXPORT int usleep(useconds_t us) {
  timespec t{static_cast<time_t>(us / 1'000'000), static_cast<long>(us % 1'000'000) * 1000};
  return nanosleep(&t, nullptr);
}

FIBERTHREAD_EXPORT unsigned sleep(unsigned seconds) {
  timespec t{static_cast<time_t>(seconds), 0}, left{};
  if (!in_fiber()) return for_a_time(&t, [&] { return REAL(sleep)(seconds); });
  int error = errno;
  if (nanosleep(&t, &left) == 0) {
    errno = error;
    return 0;
  }
  return static_cast<unsigned>(left.tv_sec);  // as libc: rounded down
}
