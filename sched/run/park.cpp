// SPDX-License-Identifier: MIT
// Waiting and waking, as sched/fiber.h promises them.
#include <errno.h>
#include <time.h>

#include "sched/cord.h"
#include "sched/embedder.h"
#include "sched/observe/probe.h"
#include "sched/poller.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"

namespace fiberthread {

std::atomic<uint32_t> clock_settings{1};

uint64_t now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec);
}

namespace {

constexpr uint32_t kTurnUs = 200;       // how long a fiber that finds data every time runs before it gives way
constexpr uint32_t kLongTurnUs = 1000;  // the same in a crowd, where no fiber finds its data in the cache when its turn comes
constexpr uint32_t kCrowd = 32;
constexpr uint32_t kHeavyUs = 300;  // a run, after whose wait the reserve is not for the fiber; a worker of the reserve is woken in 10

bool ran_for_long(const FiberRecord* me) {
  if (me->turns.preempted.load(std::memory_order_relaxed)) return true;
  return observed(kObserveRuns) && cycles() - me->run.worker->look.run_began > kHeavyUs * cycles_per_us;
}

bool park_in_kernel(FiberRecord* me, uint64_t deadline) {
  if (me->wait.called_by.load(std::memory_order_relaxed)) release_caller(me);
  me->wait.kernel_word.store(0, std::memory_order_relaxed);
  // As in post_park(), but there is no stack to leave.
  me->run.state.exchange(State::Parked, std::memory_order_seq_cst);
  bool give_up = me->run.pending_unpark.load(std::memory_order_seq_cst), in_time = true;
  while (me->wait.kernel_word.load(std::memory_order_acquire) == 0) {
    if (give_up) {
      State parked = State::Parked;
      if (me->run.state.compare_exchange_strong(parked, State::Running, std::memory_order_acq_rel)) return in_time;
      // An unpark won: its store to kernel_word is coming, and must not hit a later wait.
      while (me->wait.kernel_word.load(std::memory_order_acquire) == 0) cpu_relax();
      break;
    }
    long r = futex_wait(&me->wait.kernel_word, 0, deadline == kNever ? 0 : deadline, follows_realtime(deadline));
    give_up = r == -ETIMEDOUT || r == -EINTR;
    in_time = r != -ETIMEDOUT;
  }
  me->run.state.store(State::Running, std::memory_order_release);
  return in_time;
}

}  // namespace

bool park_if(const std::atomic<uint32_t>* flag, uint32_t expected, const ParkReason& reason, uint64_t deadline) {
  FiberRecord* me = self();
  if (chaos(8)) give_way();
  Busy busy;
  if (me->run.pending_unpark.load(std::memory_order_relaxed)) {
    // An exchange, so that the caller's next look at its condition sees what the unparking thread wrote before.
    me->run.pending_unpark.exchange(0, std::memory_order_seq_cst);
    if (observed(kObservePark)) debug_line("park", me, "does not park, as an unpark was latched: ", reason.what, reason.object);
    return true;
  }
  // This only saves a switch: an unpark that follows the change of the flag is not lost.
  if (flag->load(std::memory_order_acquire) != expected) {
    if (observed(kObservePark)) debug_line("park", me, "does not park, as what it waits for has changed: ", reason.what, reason.object);
    return true;
  }
  chaos_delay();
  if (__builtin_expect(tls_vforked, 0)) {
    // This is the child of a vfork, where an unpark would wake the parent's fiber. Such a child should not wait for anything. One that does
    // sleeps and looks again.
    constexpr long kNap[2] = {0, 200'000};
    raw_syscall(SYS_nanosleep, arg(kNap), 0);
    return !passed(me, deadline);
  }
  me->wait.reason = reason;
  FIBERTHREAD_PROBE3("park", me, reason.what, reason.object);
  if (me->run.kernel) return park_in_kernel(me, deadline);
  bool still_heavy = reason.owner && !reason.plain && is_heavy(me);
  me->run.heavy.store(still_heavy || ran_for_long(me), std::memory_order_relaxed);
  me->turns.preempted.store(0, std::memory_order_relaxed);
  me->run.worker->look.depth_first = reason.what == kJoin;
  // Relaxed: who reads it knows how old the fiber's state must be.
  uint64_t now = recent_ns.load(std::memory_order_relaxed);
  __atomic_store_n(&me->wait.since, (now & ~uint64_t{1}) | (deadline != kNever), __ATOMIC_RELAXED);
  if (deadline == kNever) {
    suspend(me, post_park);
    return true;
  }
  Worker* w = me->run.worker;
  if (w->bond.fiber == me && !w->run.cord) {
    w->bond.wait_until.store(deadline, std::memory_order_relaxed);  // its worker sleeps until then
    suspend(me, post_park);
    return !passed(me, deadline);
  }
  Timer timer{me, deadline};
  {
    Entry entry(w);
    Slot* s = w->run.slot;
    (s ? s : slots[0])->timers.add(timer);
    w->look.timer_added = true;
  }
  suspend(me, post_park);
  chaos_delay();
  timer.wheel->cancel(timer);
  return !passed(me, deadline);
}

bool unpark(FiberRecord* f) {
  State s = f->run.state.load(std::memory_order_acquire);
  for (;;) {
    chaos_delay();
    switch (s) {
      case State::Parked:
        if (!f->run.state.compare_exchange_weak(s, State::Queued, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        FIBERTHREAD_PROBE1("unpark", f);
        if (observed(kObserveWake)) debug_line("wake", f, "is woken");
        if (f->run.kernel) {
          f->wait.kernel_word.store(1, std::memory_order_release);
          futex_wake(&f->wait.kernel_word, 1);
        } else {
          Busy busy;
          enqueue_woken(f);
        }
        return true;
      case State::Running:
      case State::Queued:
        f->run.pending_unpark.exchange(1, std::memory_order_seq_cst);
        if (observed(kObserveWake)) debug_line("wake", f, "is not parked: latched");
        chaos_delay();
        s = f->run.state.load(std::memory_order_seq_cst);
        if (s == State::Parked) continue;  // it may have parked meanwhile, without a look at the latch
        return false;
      default: return false;
    }
  }
}

void unpark_in_order(FiberRecord* f) {
  Busy busy;
  Worker* w = this_worker();
  if (!w) {
    unpark(f);
    return;
  }
  Entry entry(w);
  awaited_by_others(f);  // those that are heavy have a queue of their own
  // f will stand in the queue behind the fiber in `next`. So pick() must not pass over `next`, as it does after a long streak.
  if (w->run.slot && w->run.slot->next.load(std::memory_order_relaxed)) w->look.next_streak = 0;
  unpark(f);
  if (w->run.slot) w->run.slot->local.keep_order();
}

void park_for(FiberRecord* me, FiberRecord* first) {
  me->turns.preempted.store(0, std::memory_order_relaxed);
  me->run.worker->look.depth_first = false;
  __atomic_store_n(&me->wait.since, recent_ns.load(std::memory_order_relaxed) & ~uint64_t{1}, __ATOMIC_RELAXED);
  suspend(me, post_park, first);
}

bool interrupt(FiberRecord* f, uint32_t bits) {
  f->run.interrupts.fetch_or(bits, std::memory_order_seq_cst);
  chaos_delay();
  return unpark(f);
}

Worker* interrupt_running(FiberRecord* f, uint32_t bits) {
  if (interrupt(f, bits) || f->run.kernel) return nullptr;
  State s = f->run.state.load(std::memory_order_seq_cst);
  if (s == State::Queued) {
    // It may be running already, and have looked at its interrupts before it got the bits. Then we see after this that it runs.
    barrier_everywhere();
    s = f->run.state.load(std::memory_order_acquire);
  }
  return s == State::Running ? __atomic_load_n(&f->run.worker, __ATOMIC_RELAXED) : nullptr;
}

void wait_over_slow(FiberRecord* me) {
  if (in_wait(me)) return;
  if (tls_busy == 0) leave_busy_slow();
  else if (embedder().end_requested(me)) me->run.interrupts.fetch_or(kInterruptSafePoint, std::memory_order_relaxed);  // when Busy ends
}

bool may_park() {
  FiberRecord* me = tls_current;
  if (!me || me->run.kernel || tls_vforked) return false;
  return !me->run.bound.load(std::memory_order_relaxed) || (cord_of(me) && !in_cord_callback());
}

bool keeps_others_waiting() {
  if (!may_park()) return false;
  Busy busy;
  Worker* w = tls_current->run.worker;
  Entry entry(w);
  return !w->run.slot || slot_has_work(w->run.slot);
}

// So many yields take 40 us, or 20 where they go through the queue of heavy ones. Powers of two, as each yield computes a remainder.
constexpr uint32_t kManyYields = 1024, kManyOfHeavy = 128;

bool give_way() {
  FiberRecord* me = self();
  if (!me->run.kernel && !tls_vforked) {
    Busy busy;
    Worker* w = me->run.worker;
    Worker* own = me->run.bound.load(std::memory_order_relaxed);
    bool others = own != w && (own || me->wait.called_by.load(std::memory_order_relaxed));  // it moves to `own`, or its caller goes on
    if (own == w) {
      others = w->run.cord && !in_cord_callback() && !w->run.cord->ready.empty();
    } else if (!others) {
      Entry entry(w);
      others = !w->run.slot || slot_has_work(w->run.slot) || !global_queue.empty() || hogs_wait() || is_reserve(w->run.slot);
    }
    if (others) {
      w->look.depth_first = false;
      // Fibers that only yield to each other wait for something: for what a hog computes, or for another kernel thread that wants this CPU.
      uint32_t many = is_heavy(me) && reserve_is_wanted() ? kManyOfHeavy : kManyYields;
      if (own != w && (w->run.heartbeat.load(std::memory_order_relaxed) & (many - 1)) == 0) {
        if (w->run.slot && is_reserve(w->run.slot))
          me->run.heavy.store(true, std::memory_order_relaxed);  // beside a hog, it would keep that from its CPU
        else if (!hogs.empty() && w->run.slot) next_is_hog(w);
        else raw_syscall(SYS_sched_yield);
      }
      suspend(me, post_yield);
      return true;
    }
  }
  if (me->wait.called_by.load(std::memory_order_relaxed)) release_caller(me);  // `me` is a kernel thread or a bound fiber
  raw_syscall(SYS_sched_yield);
  return false;
}

void end_turn() {
  if (tls_busy || !may_park()) return;
  FiberRecord* me = tls_current;
  Busy busy;
  Worker* w = me->run.worker;
  if (w->bond.fiber) return;
  uint32_t run = w->run.heartbeat.load(std::memory_order_relaxed);
  uint64_t now = cycles();
  if (w->look.turn != run) {
    w->look.turn = run;
    w->look.turn_began = now;
    return;
  }
  auto over = [&](uint32_t us) { return static_cast<int64_t>(now - w->look.turn_began) >= static_cast<int64_t>(us * cycles_per_us); };
  if (!over(kTurnUs)) return;
  {
    Entry entry(w);
    if (!w->run.slot || (w->run.slot->local.size() > kCrowd && !over(kLongTurnUs))) return;
    w->look.turn_began = now;
    look_at_poller(w);
    if (!slot_has_work(w->run.slot) && global_queue.empty() && (!hogs_wait() || is_reserve(w->run.slot))) return;
  }
  me->turns.preempted.store(0, std::memory_order_relaxed);  // it is not a hog
  w->look.depth_first = false;
  suspend(me, post_turn);
}

}  // namespace fiberthread
