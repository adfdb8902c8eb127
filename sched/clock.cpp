// SPDX-License-Identifier: MIT
#include "sched/clock.h"

#include <errno.h>
#include <sys/timerfd.h>
#include <time.h>

#include "sched/life/fork.h"
#include "sched/memory/block.h"
#include "sched/own_descriptors.h"
#include "sched/scheduler.h"
#include "sched/worker.h"

namespace fiberthread {
namespace {

std::atomic<int> timer{-1};  // a timerfd that is cancelled when the clock is set
std::atomic<bool> no_timer{false};

// Where there is no timer: two bounds of how far CLOCK_REALTIME is ahead of the monotonic clock. Under `ahead_lock`, which is a leaf.
SpinLock ahead_lock;
int64_t least_ahead, most_ahead;

bool is_ahead_otherwise() {
  SpinGuard guard(ahead_lock);
  timespec t;
  auto before = static_cast<int64_t>(now_ns());
  clock_gettime(CLOCK_REALTIME, &t);
  auto after = static_cast<int64_t>(now_ns()), real = t.tv_sec * 1'000'000'000 + t.tv_nsec;
  bool otherwise = real - before < least_ahead || real - after > most_ahead;
  least_ahead = real - after;
  most_ahead = real - before;
  return otherwise;
}

FIBERTHREAD_IN_FORK_CHILD(Sysmon, clock, [](FiberRecord*) {
  no_timer.store(false);
  ahead_lock.reset();
  own_fd_close(timer);  // it is the parent's
})

}  // namespace

void clock_open() { own_fd_take(raw_syscall(SYS_timerfd_create, CLOCK_REALTIME, TFD_CLOEXEC | TFD_NONBLOCK), timer); }

int clock_descriptor() { return no_timer.load(std::memory_order_relaxed) ? -1 : timer.load(std::memory_order_relaxed); }

// Arms the timer anew, which tells. Does not read it: a program that closed its number may have a file of its own there.
bool clock_was_set() {
  itimerspec never{};
  never.it_value.tv_sec = 0x7fffffff00;  // only so that it is armed
  long r = no_timer.load(std::memory_order_relaxed)
               ? -ENOSYS
               : raw_syscall(SYS_timerfd_settime, timer, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, arg(&never), 0);
  if (r == 0 || r == -ECANCELED) return r == -ECANCELED;
  no_timer.store(true, std::memory_order_relaxed);
  return is_ahead_otherwise();
}

void end_waits_for_clock() {
  clock_settings.fetch_add(1, std::memory_order_acq_rel);
  auto wake = [](FiberRecord* f, void*) {
    if (__atomic_load_n(&f->wait.clock_seen, __ATOMIC_SEQ_CST)) unpark(f);
    return true;
  };
  wake(main_fiber, nullptr);
  block_each(wake, nullptr);
}

}  // namespace fiberthread
