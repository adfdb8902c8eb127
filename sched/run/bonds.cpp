// SPDX-License-Identifier: MIT
// Bonds between a fiber and a worker of its own: why they last, those by habit, and how they end before the fiber does. sched_bind() in
// life/workers.cpp makes all others.
#include <sys/resource.h>

#include "sched/life/join.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"

namespace fiberthread {

Reasons sched_bond_of(const FiberRecord* f) {
  Worker* own = f->run.bound.load(std::memory_order_acquire);
  return own ? own->bond.reasons.load(std::memory_order_relaxed) : Reasons{0};
}

int sched_own_tid(const FiberRecord* f) {
  Worker* own = f->run.bound.load(std::memory_order_acquire);
  return own && own->bond.reasons.load(std::memory_order_relaxed) & kForGood ? own->thread.tid : 0;
}

void add_reason(Worker* own, Reasons why) {
  own->bond.reasons.fetch_or(why, std::memory_order_relaxed);
  if (why != kForCall) own->thread.tainted = true;  // a call that fails leaves its thread as it was
}

void sched_add_reason(FiberRecord* f, Reasons why) {
  join_locked(f, [&] {
    if (Worker* own = f->run.bound.load(std::memory_order_relaxed)) add_reason(own, why);
  });
}

void sched_drop_reason(FiberRecord* f, Reasons why) {
  join_locked(f, [&] {
    if (Worker* own = f->run.bound.load(std::memory_order_relaxed))
      own->bond.reasons.fetch_and(static_cast<Reasons>(~why), std::memory_order_relaxed);
  });
}

void sched_take_signals(FiberRecord* f) {
  Worker* own = join_locked(f, [&] {
    Worker* w = f->run.bound.load(std::memory_order_relaxed);
    if (w) w->bond.takes_signals.store(true, std::memory_order_relaxed);
    return w;
  });
  if (f == tls_current || !own) return;
  // It moves there now if it is parked, or sleeps in the kernel, on another worker.
  Worker* w = interrupt_running(f, kInterruptSafePoint);
  if (w && w != own) preempt_sleeper(w);
}

bool sched_takes_signals(const FiberRecord* f) {
  Worker* own = f->run.bound.load(std::memory_order_acquire);
  return own && own->bond.takes_signals.load(std::memory_order_relaxed);  // if another thread has just stored it, f is interrupted
}

FiberRecord* sched_taker_here() {
  Worker* w = tls_current ? nullptr : this_worker();
  return w && !w->run.cord && w->bond.takes_signals.load(std::memory_order_relaxed) ? w->bond.fiber : nullptr;
}

Worker* sched_keep_bond(FiberRecord* f) {
  return join_locked(f, [&]() -> Worker* {
    Worker* own = f->run.bound.load(std::memory_order_relaxed);
    if (!own || own->run.cord || __atomic_load_n(&f->run.worker, __ATOMIC_RELAXED) != own || own->bond.fiber != f) return nullptr;
    add_reason(own, kForGood);
    return own;
  });
}

namespace {

constexpr uint32_t kHabit = 8;         // blocking calls that cost a slot before the fiber becomes bound
constexpr uint32_t kFewestWaits = 64;  // waits between two looks at whether the habit lasts
constexpr uint8_t kMostDoublings = 10;

// Binds f, which runs on w, to w. Returns false if w is the last worker of the pool, or f is bound already.
bool bind_here(Worker* w, FiberRecord* f) {
  if (!leave_pool()) return false;
  Worker* none = nullptr;  // another thread may be binding f just now
  if (f->run.bound.compare_exchange_strong(none, w, std::memory_order_acq_rel)) {
    w->bond.fiber = f;
    return true;
  }
  join_pool();
  return false;
}

// Number of times that the caller, a kernel thread, has slept so far.
uint64_t sleeps_of_thread() {
  rusage usage{};
  raw_syscall(SYS_getrusage, RUSAGE_THREAD, arg(&usage));
  return static_cast<uint64_t>(usage.ru_nvcsw);
}

// Counts a wait of w's fiber for which it does not need this kernel thread. Returns true if the fiber is bound by habit only, and hardly
// slept in the kernel for other reasons lately. From the thread of w.
//
// A fiber that takes up its habit again shows that the look came too early, or that its life has parts of both kinds. So each time the
// looks are rarer.
bool habit_is_over(Worker* w) {
  FiberRecord* f = w->bond.fiber;
  // Only this fiber and sched_bind() add reasons, and end_bond() looks again under the lock.
  if (w->bond.reasons.load(std::memory_order_relaxed) || w->run.cord) return false;
  uint8_t doublings = f->turns.habits < kMostDoublings ? f->turns.habits : kMostDoublings;
  uint32_t waits = kFewestWaits << doublings;
  if (++w->bond.waits < waits || filtered.load(std::memory_order_relaxed)) return false;  // a filter may not know the call below
  w->bond.waits = 0;
  uint64_t before = w->bond.slept, now = sleeps_of_thread();
  uint32_t in_waits = w->bond.slept_in_waits;
  w->bond.slept = now;
  w->bond.slept_in_waits = 0;
  return before && now - before < in_waits + kHabit;
}

}  // namespace

// See worker.h.
void count_loss(Worker* w) {
  FiberRecord* f = w->run.running.load(std::memory_order_relaxed);
  if (!f || f->run.bound.load(std::memory_order_relaxed) || ++f->turns.blocked < kHabit || (w->thread.initial && !f->identity.is_main))
    return;
  bind_here(w, f);  // if not now, then at a later loss
}

namespace {

// Ends f's bond to w, unless there is a reason for it. From w's thread, which has f or f's queue entry.
bool end_bond(Worker* w, FiberRecord* f) {
  {
    SpinGuard guard(f->join.lock);  // sched_bind() counts on a bond that it has found
    if (w->bond.reasons.load(std::memory_order_relaxed)) return false;
    // No other thread queues f meanwhile, since it is not parked. Release: the pool's workers see it through the queue.
    f->run.bound.store(nullptr, std::memory_order_release);
  }
  f->turns.blocked = 0;
  if (f->turns.habits < kMostDoublings) f->turns.habits++;
  part_from_worker(w);
  return true;
}

// Queues a fiber that was bound.
void give_to_pool(FiberRecord* f) {
  f->run.state.store(State::Queued, std::memory_order_release);
  if (handed_to_bound(f, nullptr)) return;  // bound again by another thread
  global_queue.push(f);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_if_needed();
}

void post_unbind(Worker* w, FiberRecord* f) {
  if (end_bond(w, f)) give_to_pool(f);
  else post_yield(w, f);
}

}  // namespace

bool habit_ended(Worker* w, FiberRecord* f) {
  if (!habit_is_over(w) || !end_bond(w, f)) return false;
  give_to_pool(f);
  return true;
}

bool give_up_habit() {
  FiberRecord* me = tls_current;
  if (!me || me->run.kernel || tls_vforked || tls_busy) return false;
  Busy busy;
  Worker* w = me->run.bound.load(std::memory_order_relaxed);
  if (!w || me->run.worker != w || w->bond.fiber != me) return false;
  w->bond.slept_in_waits++;  // or will in this wait, if it has to
  if (!habit_is_over(w)) return false;
  suspend(me, post_unbind);
  return !me->run.bound.load(std::memory_order_relaxed);
}

void sched_unbind(Reasons why) {
  FiberRecord* me = self();
  Busy busy;
  Worker* w = me->run.bound.load(std::memory_order_relaxed);
  if (me->run.kernel || !w) return;
  sched_drop_reason(me, why);
  // A bond by habit looks after itself. A handler that runs in its signal's frame may be on another thread.
  if (!w->bond.reasons.load(std::memory_order_relaxed) && w->thread.tainted && me->run.worker == w && w->bond.fiber == me)
    suspend(me, post_unbind);
}

void sched_bind_to_initial() {
  FiberRecord* me = self();
  if (me->run.kernel) return;
  Busy busy;
  Worker* w = me->run.worker;
  if (!w->thread.initial) return;
  auto is_bound = [&] { return me->run.bound.load(std::memory_order_relaxed) != nullptr; };
  if (!is_bound()) {
    Entry entry(w);
    if (w->run.slot) hand_own_slot(w);  // first, because this makes another worker if this is the last
    if (!bind_here(w, me) && !is_bound()) take_free_slot(w);
  }
  SpinGuard guard(me->join.lock);
  if (Worker* own = me->run.bound.load(std::memory_order_relaxed)) own->bond.reasons.fetch_or(kForGood, std::memory_order_relaxed);
}

}  // namespace fiberthread
