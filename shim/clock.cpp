// SPDX-License-Identifier: MIT
// Clocks and timers of single threads: CPU time, and timers that signal one thread.
#include "shim/clock.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>

#include "sched/accounting.h"
#include "sched/scheduler.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/signal_parts.h"
#include "shim/thread_names.h"
#include "shim/time.h"
#include "shim/user_memory.h"

namespace fiberthread {
namespace {

// Timers for one fiber. The kernel cannot follow a fiber, so to it they are timers of the process. The handler finds out here which fiber
// they belong to. A child of fork has none of them, which `pid` tells.
struct ThreadTimer {
  std::atomic<int> number{-1};  // the kernel's; -1: free, -2: being filled in
  int pid = 0;
  uint32_t id = 0;
  // Null: the timer is deleted. Its number stays, because a kernel thread may have taken a signal of it just before, and may come here
  // late. Without the number that signal would count as the process's.
  std::atomic<FiberRecord*> fiber{nullptr};
  std::atomic<uint32_t> handing_over{0};  // how many threads are about to record a signal of it
};
ThreadTimer timers[1024];
std::atomic<size_t> timers_used{0};  // the places from here on have never been used
// Where add_timer() looks for room next. Rooms are taken in turn, so a deleted timer keeps its number as long as possible. Relaxed: no
// other memory depends on it, and the CAS on a room's number decides which thread gets the room.
std::atomic<size_t> timers_next{0};

void add_timer(int number, FiberRecord* f) {
  int pid = static_cast<int>(raw_syscall(SYS_getpid));
  constexpr size_t kRoom = sizeof timers / sizeof *timers;
  for (size_t looked = 0; looked < kRoom; looked++) {
    size_t i = timers_next.fetch_add(1, std::memory_order_relaxed) % kRoom;
    ThreadTimer& t = timers[i];
    int n = t.number.load(std::memory_order_relaxed);
    if (n == -2 || (n >= 0 && t.pid == pid && t.fiber.load(std::memory_order_relaxed)) ||
        !t.number.compare_exchange_strong(n, -2, std::memory_order_acquire))
      continue;
    if (t.pid != pid) t.handing_over.store(0, std::memory_order_relaxed);  // they were threads of the parent
    t.pid = pid;
    t.id = f->identity.id;
    t.fiber.store(f, std::memory_order_relaxed);
    t.number.store(number, std::memory_order_release);
    size_t used = timers_used.load(std::memory_order_relaxed);
    while (used < i + 1 && !timers_used.compare_exchange_weak(used, i + 1, std::memory_order_release)) {
    }
    return;
  }
  // There is no room: the timer signals the process.
}

ThreadTimer* find_timer(int number) {
  size_t used = timers_used.load(std::memory_order_acquire);
  int pid = static_cast<int>(raw_syscall(SYS_getpid));
  ThreadTimer* deleted = nullptr;  // the kernel may have given its number to another timer since
  for (size_t i = 0; i < used; i++) {
    if (timers[i].number.load(std::memory_order_acquire) != number || timers[i].pid != pid) continue;
    if (timers[i].fiber.load(std::memory_order_relaxed)) return &timers[i];  // TimerTarget loads it again, in order
    deleted = &timers[i];
  }
  return deleted;
}

// This is used everywhere, handlers and worker context included.
[[gnu::constructor]] void resolve_clock() { (void)REAL(clock_gettime); }

bool is_ours(FiberRecord* f) { return f && sched_started() && !f->run.kernel && !in_vfork_child(); }

}  // namespace

TimerTarget::TimerTarget(const siginfo_t& info) {
  ThreadTimer* t = info.si_code == SI_TIMER ? find_timer(info.si_timerid) : nullptr;
  if (!t) return;
  // Counted before `fiber` is read. timer_delete() does the two the other way round.
  handing_over_ = &t->handing_over;
  handing_over_->fetch_add(1, std::memory_order_seq_cst);
  FiberRecord* f = t->fiber.load(std::memory_order_seq_cst);
  gone_ = !f || f->identity.id != t->id || !f->join.valid.load(std::memory_order_acquire) || f->join.done.load(std::memory_order_acquire);
  fiber_ = gone_ ? nullptr : f;
}

TimerTarget::~TimerTarget() {
  if (handing_over_) handing_over_->fetch_sub(1, std::memory_order_release);
}

// A clock's number has room for 28 bits of an id.
constexpr uint32_t kClockIds = 1u << 28;

clockid_t cpu_clock_of(const FiberRecord* f) { return static_cast<clockid_t>(~(f->identity.id % kClockIds) << 3 | 6); }

FiberRecord* owner_of_clock(clockid_t clock) {
  constexpr int kThreads = 6;  // the low three bits: CPU time of one thread, as the scheduler counts it
  constexpr uint32_t kFirstOfOurs = 1u << 22, kMostIds = 1u << 30;
  FiberRecord* me = tls_current;
  if (!sched_started() || in_vfork_child() || !me) return nullptr;
  if (clock == CLOCK_THREAD_CPUTIME_ID) return is_ours(me) ? me : nullptr;
  if (clock >= 0 || (clock & 7) != kThreads) return nullptr;
  auto id = ~(static_cast<uint32_t>(clock) >> 3) % kClockIds;
  for (;; id += kClockIds) {
    FiberRecord* f = id >= kMostIds ? nullptr : fiber_of_tid(static_cast<int>(id));
    if (is_ours(f) && !f->join.done.load(std::memory_order_acquire)) return f;
    if (id < kFirstOfOurs || id >= kMostIds) return nullptr;
  }
}

}  // namespace fiberthread

using namespace fiberthread;

// Weak, since a unit test has a clock of its own.
FIBERTHREAD_EXPORT __attribute__((weak)) int clock_gettime(clockid_t clock, timespec* t) noexcept {
  if (__builtin_expect(clock >= 0 && clock != CLOCK_THREAD_CPUTIME_ID, 1)) return REAL(clock_gettime)(clock, t);
  FiberRecord* f = owner_of_clock(clock);
  if (!f) return REAL(clock_gettime)(clock, t);
  uint64_t ns = cpu_time_of(f);
  timespec time{static_cast<time_t>(ns / kNsPerSec), static_cast<long>(ns % kNsPerSec)};
  if (copy_user(t, &time)) return 0;  // the kernel would write it
  errno = EFAULT;
  return -1;
}

FIBERTHREAD_EXPORT int clock_getres(clockid_t clock, timespec* t) noexcept {
  if (clock < 0 && owner_of_clock(clock)) clock = CLOCK_THREAD_CPUTIME_ID;
  return REAL(clock_getres)(clock, t);
}

// The kernel refuses that for the clock of any thread, but it knows its own threads only.
FIBERTHREAD_EXPORT int clock_settime(clockid_t clock, const timespec* t) noexcept {
  return REAL(clock_settime)(clock < 0 && owner_of_clock(clock) ? kClockOfCaller : clock, t);
}

// The CPU time is all told as the user's: only the kernel knows which part is its own.
FIBERTHREAD_EXPORT int getrusage(__rusage_who_t who, struct rusage* usage) noexcept {
  FiberRecord* f = who == RUSAGE_THREAD ? owner_of_clock(CLOCK_THREAD_CPUTIME_ID) : nullptr;
  int r = REAL(getrusage)(who, usage);
  if (r != 0 || !f) return r;
  long size = usage->ru_maxrss;  // the process's
  uint64_t us = cpu_time_of(f) / 1000;
  Usage counts = usage_of_caller();
  memset(usage, 0, sizeof *usage);
  usage->ru_maxrss = size;
  usage->ru_minflt = static_cast<long>(counts.minor_faults);
  usage->ru_majflt = static_cast<long>(counts.major_faults);
  usage->ru_inblock = static_cast<long>(counts.blocks_in);
  usage->ru_oublock = static_cast<long>(counts.blocks_out);
  usage->ru_nvcsw = static_cast<long>(counts.voluntary);
  usage->ru_nivcsw = static_cast<long>(counts.involuntary);
  usage->ru_utime = {static_cast<time_t>(us / 1'000'000), static_cast<suseconds_t>(us % 1'000'000)};
  return 0;
}

FIBERTHREAD_EXPORT int timer_create(clockid_t clock, struct sigevent* event, timer_t* timer) noexcept {
  // Only the kernel can watch a CPU clock. So the fiber gets a kernel thread, and from now on it alone uses that thread's time.
  if (FiberRecord* owner = owner_of_clock(clock)) {
    if (sched_bind(owner) != 0) {
      errno = EAGAIN;
      return -1;
    }
    if (int tid = sched_own_tid(owner)) clock = static_cast<clockid_t>(~static_cast<unsigned>(tid) << 3 | 6);
  }
  FiberRecord* f = event && event->sigev_notify == SIGEV_THREAD_ID && event->_sigev_un._tid > 0 ? fiber_of_tid(event->_sigev_un._tid)
                                                                                                : nullptr;
  if (!is_ours(f)) return REAL(timer_create)(clock, event, timer);
  struct sigevent for_process = *event;
  for_process.sigev_notify = SIGEV_SIGNAL;
  int r = REAL(timer_create)(clock, &for_process, timer);
  if (r == 0) add_timer(static_cast<int>(reinterpret_cast<intptr_t>(*timer)), f);
  return r;
}

FIBERTHREAD_EXPORT int timer_delete(timer_t timer) noexcept {
  // Before the kernel may give the number to another timer. Timers of libc's own kind have negative handles.
  intptr_t number = reinterpret_cast<intptr_t>(timer);
  ThreadTimer* t = number >= 0 && sched_started() && !in_vfork_child() ? find_timer(static_cast<int>(number)) : nullptr;
  if (t) {
    t->fiber.store(nullptr, std::memory_order_seq_cst);
    // This takes some instructions, unless the kernel has stopped the other thread there.
    while (t->handing_over.load(std::memory_order_seq_cst)) sched_yield();
  }
  int r = REAL(timer_delete)(timer);
  // Signals that have come for the caller run before this call returns.
  if (FiberRecord* me = t && !tls_busy ? signals::ours() : nullptr) signals::run_unblocked(me);
  return r;
}
