// SPDX-License-Identifier: MIT
// Which worker runs which fiber: the queue that a runnable fiber goes to, and the switch from one fiber to the next.
#include "sched/accounting.h"
#include "sched/cord.h"
#include "sched/observe/flight.h"
#include "sched/observe/probe.h"
#include "sched/poller.h"
#include "sched/preempt.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"

namespace fiberthread {

uint64_t cycles_per_us = 0;
std::atomic<uint64_t> recent_ns{0};

namespace {

constexpr uint32_t kNextStreak = 32;  // fibers from `next` in a row before the queue gets its turn
constexpr uint32_t kFairTick = 61;    // at every 61st look, at the latest, come timers, the poller, the inbox and the global queue
std::atomic<uint32_t> round_robin{0};

constexpr uint32_t kGoesOnUs = 15;  // a fiber that runs for longer after it woke another should wake an idle worker for that one
constexpr uint8_t kTimed = 32;      // one wake-up in about so many is timed

// With chaos: queues f in a random place, since any place in any queue is right. Returns false if it has not.
bool enqueue_anywhere(Slot* own, FiberRecord* f) {
  uint32_t n = slot_count.load(std::memory_order_acquire);
  chaos_delay();
  if (chaos(3) || !own) global_queue.push(f);
  else if (chaos(2)) slots[chaos_number() % n]->inbox.push(f);
  else return false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  chaos_delay();
  wake_if_needed();
  return true;
}

// Adds a runnable fiber to the caller's slot, or to the global queue where there is none.
void enqueue_local(Worker* w, FiberRecord* f) {
  if (!w || exploring || !w->run.slot || !w->run.slot->local.push(f)) global_queue.push(f);
}

// Called at the next switch after a wake-up that is timed, or at the next wake-up before that.
void time_wake_up(FiberRecord* waker, uint64_t passed) {
  bool on = passed > kGoesOnUs * cycles_per_us;
  waker->turns.woke_at = 0;
  if (!on) {
    waker->turns.went_on = 0;
  } else if (waker->turns.went_on < 2 && ++waker->turns.went_on == 1) {
    waker->turns.until_timed = 0;  // the kernel may have taken the CPU away this time, so the next wake-up is timed too
  }
}

// Returns true if the waker probably goes on for long. A waker that is about to wait hands over its worker at no cost. One that goes on
// would keep the woken fiber from running elsewhere until sysmon looks. The waker's past tells which it is: now and then, the time from a
// wake-up to its next switch is taken.
bool goes_on_after(FiberRecord* waker) {
  if (uint64_t at = waker->turns.woke_at; __builtin_expect(at != 0, 0)) {
    uint64_t passed = cycles() - at;
    if (passed > kGoesOnUs * cycles_per_us) time_wake_up(waker, passed);
  }
  if (__builtin_expect(waker->turns.until_timed-- == 0, 0)) {
    waker->turns.woke_at = cycles();
    waker->turns.until_timed = kTimed;
  }
  return __builtin_expect(waker->turns.went_on == 2, 0);
}

// A vain wake-up costs the waker 2 us, and another CPU some 25 us.
[[gnu::noinline]] void wake_for_next() {
  if (options.spawn == SpawnPolicy::Local) return sysmon_wake();
  wake_pays.store(WakePays::No, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_if_needed();
}

}  // namespace

bool handed_to_bound(FiberRecord* f, Worker* here) {
  Worker* w = f->run.bound.load(std::memory_order_acquire);
  if (__builtin_expect(!w || w == here, 1)) return false;
  if (CordRecord* c = w->run.cord) {
    if (c->alone.load(std::memory_order_relaxed) && f == w->bond.fiber) w->bond.handed.store(f, std::memory_order_release);
    else c->ready.push(f);
    // Sequentially consistent, as the worker's look before it sleeps: it sees the fiber, or we see that it sleeps.
    if (this_worker() != w && w->idle.wake.exchange(1, std::memory_order_seq_cst) == 0) futex_wake(&w->idle.wake, 1);
    return true;
  }
  // Sequentially consistent against await_handed().
  w->bond.handed.exchange(f, std::memory_order_seq_cst);
  get_up(w);
  return true;
}

// While exploring, fibers stand in no other queue.
[[gnu::noinline]] void enqueue_global(FiberRecord* f) {
  global_queue.push(f);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_if_needed();
}

static void enqueue_heavy(FiberRecord* f) {
  heavy_queue.push(f);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_if_needed(Waiting::Hogs);
}

void enqueue_woken(FiberRecord* f) {
  if (observed(kObserveDelay)) observe_queued(f);
  if (handed_to_bound(f, nullptr)) return;
  if (__builtin_expect(exploring, 0)) return enqueue_global(f);
  Worker* w = this_worker();
  // A fiber that has waited for a lock may own it from its wake-up on. In that queue it would keep other fibers from the lock.
  if (is_heavy(f) && f->wait.reason.plain && reserve_is_wanted()) return enqueue_heavy(f);
  if (!w) {
    Slot* s = slot_in_use(f->identity.id);
    if (observed(kObserveInbox))
      debug_line("inbox", f, s ? "goes to the inbox of slot " : "goes to the global queue, number ", uint64_t{s ? s->index : 0});
    if (s) s->inbox.push(f);
    else global_queue.push(f);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // the entry before we look for sleepers; pairs with go_idle()
    wake_if_needed();
    return;
  }
  bool between_fibers = w->run.in_sched.load(std::memory_order_relaxed);  // or in unpark_in_order()
  FiberRecord* waker = between_fibers ? nullptr : tls_current;
  Entry entry(w);
  Slot* s = w->run.slot;
  if (chaos(2) && enqueue_anywhere(s, f)) return;
  // If the waker has run for long, f may have a slot of the reserve. Otherwise it is served sooner here.
  Waiting may_wake_for = !s || (waker && waker->turns.preempted.load(std::memory_order_relaxed)) ? Waiting::Others : Waiting::Hogs;
  // The waker will often wait soon, and then f runs here at once.
  if (s && !s->next.load(std::memory_order_relaxed) && !(waker && goes_on_after(waker) && free_slot_for(may_wake_for)) &&
      options.spawn != SpawnPolicy::RoundRobin) {
    s->next.store(f, std::memory_order_release);
    // If the waker does not wait, a woken worker or sysmon finds f.
    entry_fence();  // pairs with sysmon's membarrier
    if (__builtin_expect(wake_pays.load(std::memory_order_relaxed) != WakePays::No, 0) && waker && free_slot_for(Waiting::Hogs))
      wake_for_next();
    else sysmon_wake();
    return;
  }
  enqueue_local(w, f);
  if (__builtin_expect(options.spawn == SpawnPolicy::Local, 0)) {
    // A worker that searches anyway may steal f. Only sysmon wakes one for it.
    entry_fence();
    sysmon_wake();
    return;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_if_needed(may_wake_for);
}

void enqueue_round_robin(FiberRecord* f) {
  if (observed(kObserveDelay)) observe_queued(f);
  if (handed_to_bound(f, nullptr)) return;
  if (__builtin_expect(exploring, 0)) return enqueue_global(f);
  Slot* s = slot_in_use(round_robin.fetch_add(1, std::memory_order_relaxed));
  if (observed(kObserveInbox)) debug_line("inbox", f, "goes to the inbox of slot ", uint64_t{s ? s->index : 0});
  if (s) s->inbox.push(f);
  else global_queue.push(f);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_if_needed();
}

// Returns the next fiber of a cord's worker, which looks after timers and descriptors as other workers do.
FiberRecord* pick_of_cord(Worker* w) {
  CordRecord* c = w->run.cord;
  if (c->alone.load(std::memory_order_relaxed)) return w->bond.handed.exchange(nullptr, std::memory_order_acq_rel);
  if (chaos(16)) return nullptr;
  if (++w->look.tick % kFairTick == 0) {
    run_timers(now_ns());
    if (poll_active()) poll_look();
  }
  return c->ready.pop();
}

namespace {

// Returns true if the worker's next fiber shall come from the global queue: as often as a fiber then waits as long there as in the local
// queue. The workers share the global one, and sysmon moves the oldest fibers of long local queues to it (balance_queues()). Those must not
// wait until a local queue is empty: while descriptors are ready all the time, that never is.
bool global_is_next(Worker* w, bool newest) {
  uint32_t size = global_queue.size();
  if (size == 0) return false;
  if (w->look.tick % kFairTick == 0) return true;
  if (newest) return false;
  uint32_t every = 1 + w->run.slot->local.size() * circulating.load(std::memory_order_relaxed) / size;
  if (every == 1 && w->run.slot->next.load(std::memory_order_relaxed)) every = 2;
  return w->look.tick % every == 0;
}

// Returns the oldest fiber of the inbox, and moves the others to the local queue. They would wait there, too, while that is never empty.
FiberRecord* empty_inbox(Slot* s) {
  FiberRecord* first = s->inbox.pop();
  bool moved = false;
  while (FiberRecord* f = first ? s->inbox.pop() : nullptr) {
    if (!s->local.push(f)) global_queue.push(f);
    moved = true;
  }
  if (moved) {  // a worker that fell asleep meanwhile may have seen them in neither
    std::atomic_thread_fence(std::memory_order_seq_cst);
    wake_if_needed();
  }
  return first;
}
}  // namespace

// Returns the next fiber after a quick look at the queues, or null. Called on the fiber's stack or the worker's. After a preemption, or a
// turn, the fibers in the inbox come first. Hogs come last, since each of them takes a tick or more. But a worker that has run none for some
// time, by sysmon's looks, runs one.
//
// A fiber in a join waits for a fiber that it has made, which may wait for one that it has made in turn. To run the newest first is the
// order of nested calls, and keeps few fibers begun. The oldest has its turn about every millisecond, when sysmon looks.
FiberRecord* pick(Worker* w, bool preempting) {
  Slot* s = w->run.slot;
  if (!s) return w->run.cord ? pick_of_cord(w) : nullptr;
  if (__builtin_expect(exploring, 0)) return explored_pick();
  FiberRecord* f;
  if (preempting && too_many_like(s)) return nullptr;  // find() gives the slot up
  if (chaos(16)) return nullptr;
  if (chaos(16)) preempting = true;
  w->look.tick++;
  if (w->look.tick % kFairTick == 0) {
    if (too_many_like(s)) return nullptr;
    s->timers.run(now_ns());
    look_at_poller(w);
  }
  bool runs_hogs = __builtin_expect(!is_reserve(s), 1) || leave_reserve_if_possible(s);
  if (runs_hogs && hogs_are_next(w) && (f = pop_hog(w, true))) return f;
  if ((preempting || w->look.tick % kFairTick == kFairTick / 2) && (f = empty_inbox(s))) return f;
  bool newest = w->look.depth_first && !preempting;
  if (global_is_next(w, newest) && (f = global_queue.pop())) return f;
  if (newest && w->look.oldest_due.load(std::memory_order_relaxed)) {
    w->look.oldest_due.store(false, std::memory_order_relaxed);
    newest = false;
    if (!s->local.keeps_order()) w->look.next_streak = kNextStreak;  // else `next` is the first of those in order
  }
  if (w->look.next_streak < kNextStreak && (f = take_next(s))) {
    w->look.next_streak++;
    return f;
  }
  w->look.next_streak = 0;
  if ((f = newest ? s->local.pop_newest() : s->local.pop())) return f;
  if ((f = s->inbox.pop())) return f;
  if ((f = global_queue.pop())) return f;
  if ((f = take_next(s))) return f;
  return runs_hogs ? pop_hog(w, false) : nullptr;
}

namespace {

void prepare_run(Worker* w, FiberRecord* f) {
  f->run.worker = w;
  // We have taken its queue entry, so no other thread changes the state. Release: interrupt_running() reads the worker after it.
  f->run.state.store(State::Running, std::memory_order_release);
  w->run.running.store(f, std::memory_order_relaxed);
  w->run.heartbeat.store(w->run.heartbeat.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  w->counts.switches++;
  if (observed(kObserveDelay | kObserveNames | kObserveRuns)) observe_runs(w, f);
  FIBERTHREAD_PROBE2("switch", f, w);
  apply_mask(w, f->run.sigmask);
  entry_fence();  // pairs with interrupt_running(): it sees the state, or f sees its bits when it leaves Busy
}

// Calls the post-switch action. Every stack does this first after a switch to it.
void run_post(Worker* w) {
  auto* post = w->run.post;
  if (!post) return;
  w->run.post = nullptr;
  chaos_delay();
  post(w, w->run.previous);
}

// Returns true if the fiber would have gone on, had there been no other fiber.
bool gives_way(void (*post)(Worker*, FiberRecord*)) { return post == post_preempt || post == post_turn; }

Leave why_leaves(void (*post)(Worker*, FiberRecord*)) {
  return post == post_park                         ? Leave::Park
         : post == post_yield || post == post_turn ? Leave::Yield
         : post == post_preempt                    ? Leave::Preempt
                                                   : Leave::Done;
}

uint32_t why_in_flight(const FiberRecord* me, void (*post)(Worker*, FiberRecord*)) {
  return post == post_park                         ? static_cast<uint32_t>(reinterpret_cast<uintptr_t>(me->wait.reason.what))
         : post == post_yield || post == post_turn ? kFlightYield
         : post == post_preempt                    ? kFlightPreempt
                                                   : kFlightDone;
}

// Ends the call that `me` runs in, if any. Returns the caller, made Queued, if it can run next. Otherwise unparks it and returns null.
FiberRecord* take_caller(FiberRecord* me) {
  CallWait* wait = me->wait.called_by.exchange(nullptr, std::memory_order_acq_rel);
  if (!wait) return nullptr;
  FiberRecord* caller = wait->caller;
  wait->over.store(1, std::memory_order_release);  // from here on `wait` may be gone
  State parked = State::Parked;
  if (!caller->run.kernel && caller->run.state.compare_exchange_strong(parked, State::Queued, std::memory_order_acq_rel)) return caller;
  unpark(caller);
  return nullptr;
}

// Queues f unless another thread does. Called after f was made Parked, and its latch was found set.
void unpark_parked(FiberRecord* f) {
  State parked = State::Parked;
  if (f->run.state.compare_exchange_strong(parked, State::Queued, std::memory_order_acq_rel)) enqueue_woken(f);
}

}  // namespace

void arrive(FiberRecord* me) {
  Worker* w = me->run.worker;
  run_post(w);
  w->run.in_sched.store(0, std::memory_order_release);
  if (observed(kObserveCpu) && me->cpu.counts_usage) usage_arrives();
}

void release_caller(FiberRecord* me) {
  if (me->wait.calling) return;
  Busy busy;
  if (FiberRecord* caller = take_caller(me)) enqueue_woken(caller);
}

void suspend(FiberRecord* me, void (*post)(Worker*, FiberRecord*), FiberRecord* first) {
  Worker* w = me->run.worker;
  w->run.in_sched.store(1, std::memory_order_relaxed);
  entry_fence();
  if (__builtin_expect(w->run.revoked.load(std::memory_order_relaxed) != kKept, 0)) Entry::settle(w);
  w->run.post = post;
  w->run.previous = me;
  if (__builtin_expect(me->turns.woke_at != 0, 0)) time_wake_up(me, cycles() - me->turns.woke_at);
  if (__builtin_expect(observing.load(std::memory_order_relaxed), 0)) observe_leaves(w, me, why_leaves(post));
  if (__builtin_expect(me->wait.called_by.load(std::memory_order_relaxed) != nullptr, 0) && !me->wait.calling && !gives_way(post))
    first = take_caller(me);
  if (__builtin_expect(first != nullptr, 0) && (!w->run.slot || w->bond.fiber) && first->run.bound.load(std::memory_order_relaxed) != w) {
    enqueue_woken(first);
    first = nullptr;
  }
  if (__builtin_expect(exploring, 0) && first && post != post_yield) {
    enqueue_woken(first);  // nobody is handed the worker: it is a choice
    first = nullptr;
  }
  FiberRecord* next = first ? first : pick(w, gives_way(post));
  if (!next && w->run.slot && look_at_poller(w)) next = pick(w);
  while (next && handed_to_bound(next, w)) next = pick(w);
  flight_note(w, next, why_in_flight(me, post));
  if (next) {
    if (w->look.timer_added) sysmon_wake_for_timers();
    w->look.timer_added = false;
    prepare_run(w, next);
    switch_context(&me->context, &next->context);
  } else {
    w->run.running.store(nullptr, std::memory_order_relaxed);
    switch_context(&me->context, &w->context);
  }
  arrive(me);
}

// ---- post-switch actions ----

namespace {

// Sequentially consistent against unpark(), which sets the latch and then looks at the state: one of us sees the other. From the store on,
// f may run elsewhere, or its record may have another fiber. Waking it is harmless even then.
[[gnu::always_inline]] inline void become_parked(FiberRecord* f, bool wakes) {
  f->run.state.exchange(State::Parked, std::memory_order_seq_cst);
  chaos_delay();
  if (__builtin_expect(f->run.pending_unpark.load(std::memory_order_seq_cst), 0) || wakes) unpark_parked(f);
}

// A fiber that another thread has bound meanwhile moves, since its signals may come to its own kernel thread. If `bound` was read too early
// for that, the other thread's unpark() comes after it: it finds f parked, or we find the latch set.
[[gnu::noinline]] void park_bound(Worker* w, FiberRecord* f) { become_parked(f, f->run.bound.load(std::memory_order_relaxed) != w); }

}  // namespace

void post_park(Worker* w, FiberRecord* f) {
  w->counts.parks++;
  chaos_delay();
  if (__builtin_expect(f->run.bound.load(std::memory_order_relaxed) != nullptr, 0)) park_bound(w, f);
  else become_parked(f, false);
}

void post_yield(Worker* w, FiberRecord* f) {
  if (observed(kObserveDelay)) observe_queued(f);
  f->run.state.store(State::Queued, std::memory_order_release);
  if (handed_to_bound(f, nullptr)) return;
  if (chaos(2) && enqueue_anywhere(w->run.slot, f)) return;
  if (is_heavy(f) && reserve_is_wanted()) return enqueue_heavy(f);
  enqueue_local(w, f);
  // The fiber that runs next is in no queue any more. Sysmon may have looked just before this push, and gone to sleep.
  entry_fence();
  sysmon_wake();
}

void post_turn(Worker* w, FiberRecord* f) { post_yield(w, f); }

void post_preempt(Worker* w, FiberRecord* f) {
  if (observed(kObserveDelay)) observe_queued(f);
  f->run.state.store(State::Queued, std::memory_order_release);
  if (handed_to_bound(f, nullptr)) return;
  if (chaos(2) && enqueue_anywhere(w->run.slot, f)) return;
  if (f->turns.in_libc) global_queue.push_front(f);  // it may hold one of libc's locks
  else if (is_hog(f) && !exploring) push_hog(w, f);
  else if (reserve_is_wanted()) heavy_queue.push(f);  // not where a worker of the reserve would find it
  else enqueue_local(w, f);                           // its data are in this CPU's cache
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_if_needed(Waiting::Hogs);
}

void preempt_switch_out(FiberRecord* me) {
  Busy busy;
  me->turns.preempted.store(me->turns.preempted.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  me->turns.ticks = 0;
  me->run.worker->counts.preemptions.fetch_add(1, std::memory_order_relaxed);
  FIBERTHREAD_PROBE2("preempt", me, me->run.worker);
  suspend(me, post_preempt);
}

[[noreturn]] void worker_loop(Worker* w) {
  for (;;) {
    run_post(w);
    if (w->thread.leaves.load(std::memory_order_acquire)) leave_worker(w);
    FiberRecord* f = w->bond.fiber ? await_handed(w) : find(w);
    stop_searching(w);
    if (next_timer() != kNever) sysmon_wake_for_timers();
    if (!f || handed_to_bound(f, w)) continue;
    if (observed(kObserveCpu)) account(w, nullptr);
    if (observed(kObserveTrace)) observe_begins(w);
    flight_note(w, f, kFlightNothing);
    prepare_run(w, f);
    switch_context(&w->context, &f->context);
  }
}

}  // namespace fiberthread
