// SPDX-License-Identifier: MIT
#include "shim/posix_timer.h"

#include <errno.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>

#include "sched/large.h"
#include "sched/life/fork.h"
#include "sched/scheduler.h"
#include "sched/spinlock.h"
#include "shim/clock.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/signal_parts.h"
#include "shim/thread_names.h"
#include "shim/time.h"
#include "shim/user_memory.h"

namespace fiberthread {
namespace {

// The kernel numbers a process's timers one after the other. So a timer has the place that its number says, in the first table where that
// is free, and a deleted one is found there until as many more have been made as a table has places.
struct TimerTable {
  static constexpr uint32_t kSize = 1024;
  PosixTimer timers[kSize];
  std::atomic<TimerTable*> next{nullptr};
};
FIBERTHREAD_LARGE_DATA TimerTable first_table;
std::atomic<bool> made_any{false};

// Under Busy. No handler runs then, which might set a timer, too.
SpinLock settings_lock;

// Returns null if there is no memory.
TimerTable* table_after(TimerTable& t) {
  if (TimerTable* next = t.next.load(std::memory_order_acquire)) return next;
  void* memory = map_memory(sizeof(TimerTable), PROT_READ | PROT_WRITE);
  if (!memory) return nullptr;
  auto* made = new (memory) TimerTable;
  TimerTable* other = nullptr;
  if (t.next.compare_exchange_strong(other, made, std::memory_order_acq_rel)) return made;
  unmap_memory(memory, sizeof(TimerTable));
  return other;
}

// Returns the clock by which a timer that stands still is late. -1 for clocks that run too slowly to be stopped (CPU time), or unknown ones.
clockid_t pace_of(clockid_t clock) {
  switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_MONOTONIC:
    case CLOCK_TAI: return CLOCK_MONOTONIC;
    case CLOCK_BOOTTIME:
    case CLOCK_REALTIME_ALARM:
    case CLOCK_BOOTTIME_ALARM: return CLOCK_BOOTTIME;
    default: return -1;
  }
}

bool add_timer(int number, clockid_t clock, int tid, FiberRecord* f) {
  if (!made_any.load(std::memory_order_relaxed)) made_any.store(true, std::memory_order_relaxed);
  for (TimerTable* table = &first_table; table; table = table_after(*table)) {
    PosixTimer& t = table->timers[static_cast<uint32_t>(number) % TimerTable::kSize];
    int n = t.number.load(std::memory_order_acquire);
    if (n == -2 || (n >= 0 && !t.deleted.load(std::memory_order_relaxed)) ||
        !t.number.compare_exchange_strong(n, -2, std::memory_order_acquire))
      continue;
    t.tid = tid;
    t.fiber = f;
    t.clock = clock;
    t.pace = pace_of(clock);
    t.absolute = false;
    t.due.store(0, std::memory_order_relaxed);
    t.overrun.store(-1, std::memory_order_relaxed);
    t.deleted.store(false, std::memory_order_relaxed);
    t.number.store(number, std::memory_order_release);
    return true;
  }
  return false;
}

PosixTimer* find_timer(int number) {
  if (number < 0) return nullptr;  // libc's own kind has negative handles
  for (TimerTable* table = &first_table; table; table = table->next.load(std::memory_order_acquire)) {
    PosixTimer& t = table->timers[static_cast<uint32_t>(number) % TimerTable::kSize];
    if (t.number.load(std::memory_order_acquire) == number) return &t;
  }
  return nullptr;
}

PosixTimer* find_timer(timer_t handle) {
  intptr_t number = reinterpret_cast<intptr_t>(handle);
  if (__builtin_expect(tls_vforked, 0) && in_vfork_child()) return nullptr;  // a child has none of its parent's timers
  return number >= 0 && number <= INT_MAX ? find_timer(static_cast<int>(number)) : nullptr;
}

// Returns the fiber with that tid, whose signals the library must give to it. Null: there is none. Main may become a fiber later.
FiberRecord* fiber_to_signal(int tid) {
  if (tid <= 0) return nullptr;
  if (!sched_started()) return tid == raw_syscall(SYS_getpid) ? main_fiber : nullptr;
  FiberRecord* f = in_vfork_child() ? nullptr : fiber_of_tid(tid);
  return f && !f->run.kernel ? f : nullptr;
}

uint64_t ns_of(const timespec& t) { return static_cast<uint64_t>(t.tv_sec) * kNsPerSec + static_cast<uint64_t>(t.tv_nsec); }
timespec timespec_of(uint64_t ns) { return {static_cast<time_t>(ns / kNsPerSec), static_cast<long>(ns % kNsPerSec)}; }
uint64_t time_of(clockid_t clock) {
  timespec t{};
  REAL(clock_gettime)(clock, &t);
  return ns_of(t);
}

// Returns the earliest time at which a timer that is being set now can expire, by `pace`. 0: another clock than that decides.
uint64_t due_of(const PosixTimer& t, int flags, const itimerspec& value) {
  uint64_t in = ns_of(value.it_value);
  if (in == 0) return kNever;
  if (flags & TIMER_ABSTIME) return t.clock == t.pace ? in : 0;
  return t.clock == t.pace || t.clock == CLOCK_REALTIME ? time_of(t.pace) + in : 0;
}

// Drops what is pending of the timer. Waits before until no thread has a signal of it in hand. This takes some instructions, unless the
// kernel has stopped such a thread there.
void drop_signals(PosixTimer& t, signals::Drop which = signals::Drop::Any) {
  constexpr long kNap[2] = {0, 20'000};  // to yield would not do for a thread of a real-time policy
  for (uint32_t looks = 0; t.handing_over.load(std::memory_order_seq_cst); looks++) {
    if (looks < 100) cpu_relax();
    else raw_syscall(SYS_nanosleep, arg(kNap), 0);
  }
  if (signals::nothing_is_pending()) return;
  if (FiberRecord* me = tls_busy ? nullptr : signals::ours()) signals::run_unblocked(me);  // what has come for the caller
  signals::drop_pending_of(t, which);
}

FIBERTHREAD_IN_FORK_CHILD(Embedder, timers, [](FiberRecord*) {
  if (!made_any.load(std::memory_order_relaxed)) return;  // the table is many pages
  settings_lock.reset();
  for (TimerTable* table = &first_table; table; table = table->next.load(std::memory_order_relaxed))
    for (PosixTimer& t : table->timers)
      if (t.number.load(std::memory_order_relaxed) != -1) new (&t) PosixTimer;
})

}  // namespace

bool timers_set() {
  if (!made_any.load(std::memory_order_relaxed)) return false;
  for (TimerTable* table = &first_table; table; table = table->next.load(std::memory_order_acquire))
    for (PosixTimer& t : table->timers) {
      int number = t.number.load(std::memory_order_acquire);
      itimerspec left;
      if (number < 0 || t.deleted.load(std::memory_order_relaxed)) continue;
      if (t.interval.load(std::memory_order_relaxed)) return true;  // it goes on when its signal is got
      if (raw_syscall(SYS_timer_gettime, number, arg(&left)) == 0 && (ns_of(left.it_value) || ns_of(left.it_interval))) return true;
    }
  return false;
}

PosixTimer* timer_of(const siginfo_t& info) { return info.si_code == SI_TIMER ? find_timer(info.si_timerid) : nullptr; }

void timer_stop(PosixTimer& t) {
  itimerspec rest, none{};
  if (t.interval.load(std::memory_order_relaxed) || t.pace == -1) return;
  // A thread that sets the timer counts itself and then looks whether a signal is pending. So it sees this one, and waits for the lock, or it
  // is seen here.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (t.settings_begun.load(std::memory_order_seq_cst) != t.settings_over.load(std::memory_order_seq_cst)) return;
  if (raw_syscall(SYS_timer_gettime, t.number.load(std::memory_order_relaxed), arg(&rest)) != 0 || ns_of(rest.it_interval) == 0) return;
  uint64_t now = time_of(t.pace);
  if (raw_syscall(SYS_timer_settime, t.number.load(std::memory_order_relaxed), 0, arg(&none), 0) != 0) return;
  t.left = ns_of(rest.it_value);
  t.stopped = now;
  t.interval.store(ns_of(rest.it_interval), std::memory_order_release);
}

void timer_go_on(PosixTimer& t) {
  uint64_t interval = t.interval.load(std::memory_order_relaxed);
  if (!interval) return;
  uint64_t late = time_of(t.pace) - t.stopped, missed = late < t.left ? 0 : (late - t.left) / interval + 1;
  uint64_t next = t.left + missed * interval - late;  // from now
  signals::add_overruns(t.pending->info, missed);
  itimerspec set{timespec_of(interval), timespec_of(t.absolute ? time_of(t.clock) + next : next)};
  raw_syscall(SYS_timer_settime, t.number.load(std::memory_order_relaxed), t.absolute ? TIMER_ABSTIME : 0, arg(&set), 0);
  t.interval.store(0, std::memory_order_release);
}

bool timer_signal_is_old(const PosixTimer& t) {
  if (t.deleted.load(std::memory_order_relaxed)) return true;
  uint64_t due = t.due.load(std::memory_order_relaxed);
  return due != 0 && time_of(t.pace) < due;
}

TimerTarget::TimerTarget(const siginfo_t& info) {
  PosixTimer* t = timer_of(info);
  if (!t) return;
  // Counted before `deleted` is read. timer_delete() does the two the other way round.
  timer_ = t;
  t->handing_over.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  gone_ = timer_signal_is_old(*t) || t->number.load(std::memory_order_relaxed) != info.si_timerid;
  if (gone_ || t->tid == 0) return;
  FiberRecord* f = t->fiber;
  bool lives = f->identity.id == static_cast<uint32_t>(t->tid) && f->join.valid.load(std::memory_order_acquire) &&
               !f->join.done.load(std::memory_order_acquire);
  if (lives) fiber_ = f;
  else gone_ = true;
}

TimerTarget::~TimerTarget() {
  if (timer_) timer_->handing_over.fetch_sub(1, std::memory_order_release);
}

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int timer_create(clockid_t clock, struct sigevent* event, timer_t* timer) noexcept {
  // Only the kernel can watch a CPU clock. So the fiber gets a kernel thread, and from now on it alone uses that thread's time.
  if (FiberRecord* owner = owner_of_clock(clock)) {
    if (sched_bind(owner) != 0) {
      errno = EAGAIN;
      return -1;
    }
    if (int tid = sched_own_tid(owner)) clock = static_cast<clockid_t>(~static_cast<unsigned>(tid) << 3 | 6);
  }
  bool silent = event && (event->sigev_notify == SIGEV_NONE || event->sigev_notify == SIGEV_THREAD);
  if (silent) return REAL(timer_create)(clock, event, timer);
  // The kernel cannot follow a fiber, so to it a fiber's timers are the process's.
  int tid = event && event->sigev_notify == SIGEV_THREAD_ID ? event->_sigev_un._tid : 0;
  FiberRecord* f = fiber_to_signal(tid);
  if (tid != 0 && !f) return REAL(timer_create)(clock, event, timer);
  struct sigevent for_process;
  if (f) {
    for_process = *event;
    for_process.sigev_notify = SIGEV_SIGNAL;
    if (int sig = event->sigev_signo; sig > 0 && sig <= signals::kSignals)
      signals::catch_by_default(signals::bit(sig) & ~signals::kIgnoredByDefault);
    event = &for_process;
  }
  int r = REAL(timer_create)(clock, event, timer);
  if (r != 0 || add_timer(static_cast<int>(reinterpret_cast<intptr_t>(*timer)), clock, tid, f)) return r;
  REAL(timer_delete)(*timer);
  errno = EAGAIN;
  return -1;
}

FIBERTHREAD_EXPORT int timer_settime(timer_t timer, int flags, const itimerspec* value, itimerspec* old) noexcept {
  PosixTimer* t = find_timer(timer);
  if (!t) return REAL(timer_settime)(timer, flags, value, old);
  uint64_t due_before;
  uint32_t mine;
  bool alone;
  {
    Busy busy;
    SpinGuard guard(settings_lock);
    mine = t->settings_begun.load(std::memory_order_relaxed);
    alone = mine == t->settings_over.load(std::memory_order_relaxed);
    t->settings_begun.store(++mine, std::memory_order_seq_cst);
    due_before = t->due.exchange(0, std::memory_order_relaxed);  // this thread may be kept from running until the new time has come
  }
  drop_signals(*t);
  itimerspec set;
  bool good = copy_user(&set, value) && valid(set.it_value) && set.it_value.tv_sec >= 0;
  uint64_t due = good ? due_of(*t, flags, set) : 0;
  int r = REAL(timer_settime)(timer, flags, value, old);
  {
    Busy busy;
    SpinGuard guard(settings_lock);
    // If another thread has set it meanwhile, nobody knows which of the two came last.
    alone = alone && mine == t->settings_begun.load(std::memory_order_relaxed);
    t->due.store(!alone ? 0 : r == 0 ? due : due_before, std::memory_order_relaxed);
    if (r == 0) t->absolute = flags & TIMER_ABSTIME;
    if (r == 0) t->overrun.store(-1, std::memory_order_relaxed);
    t->settings_over.store(t->settings_over.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  }
  // What has come since then is old, too, if it comes before the new time.
  if (r == 0 && timer_signal_is_old(*t)) drop_signals(*t, signals::Drop::IfOld);
  return r;
}

FIBERTHREAD_EXPORT int timer_gettime(timer_t timer, itimerspec* value) noexcept {
  for (PosixTimer* t = find_timer(timer);;) {
    if (t && t->interval.load(std::memory_order_acquire)) {
      Busy busy;
      signals::SignalsGuard guard;
      timer_go_on(*t);
    }
    int r = REAL(timer_gettime)(timer, value);
    if (!t || !t->interval.load(std::memory_order_acquire)) return r;
    // It was stopped meanwhile.
  }
}

FIBERTHREAD_EXPORT int timer_getoverrun(timer_t timer) noexcept {
  int r = REAL(timer_getoverrun)(timer);
  PosixTimer* t = r >= 0 ? find_timer(timer) : nullptr;
  int known = t ? t->overrun.load(std::memory_order_relaxed) : -1;
  return known >= 0 ? known : r;
}

FIBERTHREAD_EXPORT int timer_delete(timer_t timer) noexcept {
  // Before the kernel may give the number to another timer.
  if (PosixTimer* t = find_timer(timer)) {
    t->deleted.store(true, std::memory_order_seq_cst);
    drop_signals(*t);
  }
  return REAL(timer_delete)(timer);
}
