// Who runs what: park, unpark, yield, and what a worker does when it has nothing to run.
#include <errno.h>
#include <sys/mman.h>
#include <time.h>

#include <new>

#include "sched/accounting.h"
#include "sched/chaos.h"
#include "sched/cord.h"
#include "sched/poller.h"
#include "sched/preempt.h"
#include "sched/observe/probe.h"
#include "sched/stack.h"
#include "sched/observe/watch.h"
#include "sched/worker.h"

namespace fiberthread {

uint64_t cycles_per_us = 0;
std::atomic<uint64_t> recent_ns{0};
std::atomic<bool> no_membarrier{false};

namespace {

Slot* slots[kMaxSlots];
std::atomic<uint32_t> slot_count{0};
GlobalQueue global_queue;

// Idle state: free slots, workers without a slot that sleep, and who of them sleeps until the next timer.
SpinLock idle_lock;
Slot* free_slots = nullptr;
std::atomic<uint32_t> free_slot_count{0};
// Slots held or free, how many there shall be, and those beyond. Retired ones are empty, but for what somebody puts into the
// inbox who saw the slot in use a moment ago: thieves find it, and balance_queues().
std::atomic<uint32_t> circulating{0}, wanted{0};
Slot* retired_slots = nullptr;
Worker* idle_workers = nullptr;
Worker* timer_watcher = nullptr;
uint64_t watch_deadline = kNever;
// Of the poller: who sleeps there; who got events last, and when.
std::atomic<Worker*> poll_watcher{nullptr};
std::atomic<Worker*> harvester{nullptr};
std::atomic<uint64_t> harvested_at{0};
// Workers that look for work to steal. While there is one, nobody needs to be woken; the last to find work wakes the next.
std::atomic<uint32_t> searching{0};

std::atomic<uint32_t> round_robin{0};

constexpr uint32_t kNextStreak = 32;   // fibers from `next` in a row before the queue gets its turn
constexpr uint32_t kFairTick = 61;     // every so many looks the global queue comes first
constexpr uint32_t kMostMoved = 32;    // from a local queue that is too long, at once
constexpr uint32_t kStealAgeUs = 5;    // how long `next` belongs to its slot alone
constexpr uint32_t kAttendedUs = 100;  // so long after it got events, a worker is expected to look for more
constexpr uint32_t kGoesOnUs = 15;     // who runs so long after it woke another had better wake a worker for it, if one is idle
constexpr uint8_t kTimed = 32;         // after so many wake-ups one is timed
constexpr uint32_t kTurnUs = 200;      // how long a fiber that finds data every time runs before it gives way
constexpr uint32_t kLongTurnUs = 1000; // the same while so many wait that none finds its data in the cache when its turn comes
constexpr uint32_t kCrowd = 32;
constexpr uint32_t kHabit = 8;         // blocking calls that cost a slot before the fiber becomes bound

// ---- queues ----

bool slot_has_work(const Slot* s) {
  return s->next.load(std::memory_order_relaxed) || !s->local.empty() || !s->inbox.empty();
}

void entry_fence() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (__builtin_expect(no_membarrier.load(std::memory_order_relaxed), 0)) std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Entry into scheduler code that may use the worker's slot; the other side is try_take() in sysmon.cpp.
class Entry {
 public:
  explicit Entry(Worker* w) : w_(w), before_(w->in_sched.load(std::memory_order_relaxed)) {
    w->in_sched.store(1, std::memory_order_relaxed);
    chaos_delay();
    // Sysmon's membarrier makes this store visible before the load below, or makes the load see its request.
    entry_fence();
    if (__builtin_expect(w->revoked.load(std::memory_order_relaxed) != kKept, 0)) settle(w);
  }
  ~Entry() { w_->in_sched.store(before_, std::memory_order_release); }

  static void settle(Worker* w) {
    uint32_t asked = kAsked;
    if (w->revoked.compare_exchange_strong(asked, kKept, std::memory_order_acq_rel) || asked == kKept) return;
    w->slot = nullptr;  // taken: somebody else has it
    w->revoked.store(kKept, std::memory_order_release);
    if (watched(kWatchTrace)) watch_came_back(w);
    count_loss(w);
  }

  // Who blocks again and again keeps this kernel thread, and never again a slot that others wait for.
  static void count_loss(Worker* w) {
    FiberRecord* f = w->running.load(std::memory_order_relaxed);
    if (!f || f->bound.load(std::memory_order_relaxed) || ++f->blocked < kHabit || (w->initial && !f->is_main)) return;
    // Another may be binding it just now.
    Worker* none = nullptr;
    if (f->bound.compare_exchange_strong(none, w, std::memory_order_acq_rel)) w->bound = f;
  }

 private:
  Worker* w_;
  uint32_t before_;
};

// One of those in use, numbered as one likes.
Slot* slot_in_use(uint32_t number) {
  uint32_t n = slot_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++) {
    Slot* s = slots[(number + i) % n];
    if (!s->retired.load(std::memory_order_relaxed)) return s;
  }
  return nullptr;
}

// Any place in any queue is right.
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
  if (!w || !w->slot || !w->slot->local.push(f)) global_queue.push(f);
}

// A waker that is about to wait hands over its worker at no cost; one that goes on would keep the other from running elsewhere until sysmon
// looks. Its own past tells which it is: now and then, the time from a wake-up to its next switch is taken.
bool goes_on_after(FiberRecord* waker) {
  if (__builtin_expect(waker->until_timed-- == 0, 0)) {
    waker->woke_at = cycles();
    waker->until_timed = kTimed;
  }
  return __builtin_expect(waker->went_on == 2, 0);
}

void time_wake_up(FiberRecord* waker) {
  bool on = cycles() - waker->woke_at > kGoesOnUs * cycles_per_us;
  waker->woke_at = 0;
  if (!on) {
    waker->went_on = 0;
  } else if (waker->went_on < 2 && ++waker->went_on == 1) {
    waker->until_timed = 0;  // this one may have been the kernel's doing: the next tells
  }
}

}  // namespace

void get_up(Worker* w) {
  w->wake.exchange(1, std::memory_order_seq_cst);
  // Sequentially consistent against go_idle().
  if (w->in_poller.load(std::memory_order_seq_cst)) poll_wake();
  else futex_wake(&w->wake, 1);
}

bool handed_to_bound(FiberRecord* f, Worker* here) {
  Worker* w = f->bound.load(std::memory_order_acquire);
  if (__builtin_expect(!w || w == here, 1)) return false;
  if (CordRecord* c = w->cord) {
    if (c->alone.load(std::memory_order_relaxed) && f == w->bound) w->handed.store(f, std::memory_order_release);
    else c->ready.push(f);
    // It looks before it sleeps, and sequentially consistent: it sees the fiber then, or we that it sleeps.
    if (this_worker() != w && w->wake.exchange(1, std::memory_order_seq_cst) == 0) futex_wake(&w->wake, 1);
    return true;
  }
  // Sequentially consistent against await_handed().
  w->handed.exchange(f, std::memory_order_seq_cst);
  get_up(w);
  return true;
}

void enqueue_woken(FiberRecord* f) {
  if (handed_to_bound(f, nullptr)) return;
  Worker* w = this_worker();
  if (!w) {
    Slot* s = slot_in_use(f->id);
    if (watched(kWatchInbox)) debug_line("inbox", f, s ? "goes to the inbox of slot " : "goes to the global queue, number ", uint64_t{s ? s->index : 0});
    if (s) s->inbox.push(f);
    else global_queue.push(f);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // the entry before we look for sleepers; pairs with go_idle()
    wake_if_needed();
    return;
  }
  FiberRecord* waker = w->in_sched.load(std::memory_order_relaxed) ? nullptr : tls_current;
  Entry entry(w);
  Slot* s = w->slot;
  if (chaos(2) && enqueue_anywhere(s, f)) return;
  // Whoever woke it will often wait soon, and then it runs here at once.
  if (s && !s->next.load(std::memory_order_relaxed) && !(waker && goes_on_after(waker) && idle_slots()) && options.spawn != SpawnPolicy::RoundRobin) {
    s->next.store(f, std::memory_order_release);
    // If not, sysmon finds it.
    entry_fence();  // sysmon's membarrier is the other half
    sysmon_poke();
    return;
  }
  enqueue_local(w, f);
  if (__builtin_expect(options.spawn == SpawnPolicy::Local, 0)) {
    // Whoever searches anyway may steal it; nobody else is woken but by sysmon.
    entry_fence();
    sysmon_poke();
    return;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_if_needed();
}

void enqueue_round_robin(FiberRecord* f) {
  if (handed_to_bound(f, nullptr)) return;
  Slot* s = slot_in_use(round_robin.fetch_add(1, std::memory_order_relaxed));
  if (watched(kWatchInbox)) debug_line("inbox", f, "goes to the inbox of slot ", uint64_t{s ? s->index : 0});
  if (s) s->inbox.push(f);
  else global_queue.push(f);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_if_needed();
}

namespace {

bool too_many_slots() { return circulating.load(std::memory_order_relaxed) > wanted.load(std::memory_order_relaxed); }

FiberRecord* take_next(Slot* s) {
  return s->next.load(std::memory_order_relaxed) ? s->next.exchange(nullptr, std::memory_order_acq_rel) : nullptr;
}

bool look_at_poller(Worker* w) {
  if (!poll_active() || !poll_look()) return false;
  harvester.store(w, std::memory_order_relaxed);
  harvested_at.store(cycles(), std::memory_order_relaxed);
  return true;
}

// Does another than `w` look at the poller all the time?
bool attended_without(Worker* w) {
  return harvester.load(std::memory_order_relaxed) != w &&
         static_cast<int64_t>(cycles() - harvested_at.load(std::memory_order_relaxed)) < static_cast<int64_t>(kAttendedUs * cycles_per_us);
}

// What pick() is to a cord's worker, which looks after timers and descriptors as the others do.
FiberRecord* pick_of_cord(Worker* w) {
  CordRecord* c = w->cord;
  if (c->alone.load(std::memory_order_relaxed)) return w->handed.exchange(nullptr, std::memory_order_acq_rel);
  if (chaos(16)) return nullptr;
  if (++w->tick % kFairTick == 0) {
    run_timers(now_ns());
    if (poll_active()) poll_look();
  }
  return c->ready.pop();
}

// A quick look, on the fiber's stack or the worker's. After a preemption, or a turn, those that others have woken come first, then the
// global queue and the slot's own in turn: either may be all hogs, each of which takes a tick.
//
// Who waits in a join waits for what it has made, and that for what it makes in turn: the newest first is the order of nested
// calls, and keeps few of them begun. The oldest has its turn about every millisecond, when sysmon looks.
FiberRecord* pick(Worker* w, bool preempting = false) {
  Slot* s = w->slot;
  if (!s) return w->cord ? pick_of_cord(w) : nullptr;
  FiberRecord* f;
  if (preempting && too_many_slots()) return nullptr;  // find() gives it up
  if (chaos(16)) return nullptr;
  if (chaos(16)) preempting = true;
  w->tick++;
  if (w->tick % kFairTick == 0) {
    s->timers.run(now_ns());
    look_at_poller(w);
    if ((f = global_queue.pop())) return f;
  }
  if ((preempting || w->tick % kFairTick == kFairTick / 2) && (f = s->inbox.pop())) return f;
  if (preempting && w->tick % 2 && (f = global_queue.pop())) return f;
  bool newest = w->depth_first && !preempting;
  if (newest && w->oldest_due.load(std::memory_order_relaxed)) {
    w->oldest_due.store(false, std::memory_order_relaxed);
    newest = false;
    if (!s->local.keeps_order()) w->next_streak = kNextStreak;  // else `next` is the oldest of those
  }
  if (w->next_streak < kNextStreak && (f = take_next(s))) {
    w->next_streak++;
    return f;
  }
  w->next_streak = 0;
  if ((f = newest ? s->local.pop_newest() : s->local.pop())) return f;
  if ((f = s->inbox.pop())) return f;
  if ((f = global_queue.pop())) return f;
  return take_next(s);
}

void apply_mask(Worker* w, uint64_t mask) {
  mask = without_trap(mask);
  if (w->kernel_mask == mask) return;
  w->kernel_mask = mask;
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&mask), 0, 8);
}

void prepare_run(Worker* w, FiberRecord* f) {
  f->state.store(State::Running, std::memory_order_relaxed);  // we own the queue entry, so nobody else changes it
  f->worker = w;
  w->running.store(f, std::memory_order_relaxed);
  w->heartbeat.store(w->heartbeat.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  w->switches++;
  FIBERTHREAD_PROBE2("switch", f, w);
  apply_mask(w, f->sigmask);
}

// What every stack does first after a switch brought it back.
void run_post(Worker* w) {
  auto* post = w->post;
  if (!post) return;
  w->post = nullptr;
  chaos_delay();
  post(w, w->previous);
}

void post_park(Worker*, FiberRecord*);
void post_yield(Worker*, FiberRecord*);
void post_turn(Worker*, FiberRecord*);
void post_preempt(Worker*, FiberRecord*);

// It would have gone on, if there were nobody else.
bool gives_way(void (*post)(Worker*, FiberRecord*)) { return post == post_preempt || post == post_turn; }

Leave why_leaves(void (*post)(Worker*, FiberRecord*)) {
  return post == post_park ? Leave::Park : post == post_yield || post == post_turn ? Leave::Yield : post == post_preempt ? Leave::Preempt : Leave::Done;
}

}  // namespace

void arrive(FiberRecord* me) {
  Worker* w = me->worker;
  run_post(w);
  w->in_sched.store(0, std::memory_order_release);
}

namespace {
// What it returns, if anything, is QUEUED, and to run next.
FiberRecord* take_caller(FiberRecord* me) {
  CallWait* wait = me->called_by.exchange(nullptr, std::memory_order_acq_rel);
  if (!wait) return nullptr;
  FiberRecord* caller = wait->caller;
  wait->over.store(1, std::memory_order_release);  // from here on it may be gone
  State parked = State::Parked;
  if (!caller->kernel && caller->state.compare_exchange_strong(parked, State::Queued, std::memory_order_acq_rel)) return caller;
  unpark(caller);
  return nullptr;
}
}  // namespace

void release_caller(FiberRecord* me) {
  if (me->calling) return;
  Busy busy;
  if (FiberRecord* caller = take_caller(me)) enqueue_woken(caller);
}

void suspend(FiberRecord* me, void (*post)(Worker*, FiberRecord*), FiberRecord* first) {
  Worker* w = me->worker;
  w->in_sched.store(1, std::memory_order_relaxed);
  entry_fence();
  if (__builtin_expect(w->revoked.load(std::memory_order_relaxed) != kKept, 0)) Entry::settle(w);
  w->post = post;
  w->previous = me;
  if (__builtin_expect(me->woke_at != 0, 0)) time_wake_up(me);
  if (__builtin_expect(watching.load(std::memory_order_relaxed), 0)) watch_leaves(w, me, why_leaves(post));
  if (__builtin_expect(me->called_by.load(std::memory_order_relaxed) != nullptr, 0) && !me->calling && !gives_way(post)) first = take_caller(me);
  if (__builtin_expect(first != nullptr, 0) && (!w->slot || w->bound) && first->bound.load(std::memory_order_relaxed) != w) {
    enqueue_woken(first);
    first = nullptr;
  }
  FiberRecord* next = first ? first : pick(w, gives_way(post));
  if (!next && w->slot && look_at_poller(w)) next = pick(w);
  while (next && handed_to_bound(next, w)) next = pick(w);
  if (next) {
    if (w->timer_added) sysmon_watch_timers();
    w->timer_added = false;
    prepare_run(w, next);
    switch_context(&me->context, &next->context);
  } else {
    w->running.store(nullptr, std::memory_order_relaxed);
    switch_context(&me->context, &w->context);
  }
  arrive(me);
}

// ---- post-switch actions ----

namespace {

// Puts itself back into the queue, if nobody else does: for who has published PARKED, and then saw the latch.
void unpark_parked(FiberRecord* f) {
  State parked = State::Parked;
  if (f->state.compare_exchange_strong(parked, State::Queued, std::memory_order_acq_rel)) enqueue_woken(f);
}

void post_park(Worker* w, FiberRecord* f) {
  w->parks++;
  chaos_delay();
  // Sequentially consistent against unpark(), which sets the latch and then looks at the state: one of us sees the other.
  // From the store on, f may run elsewhere, and be anybody's; to wake it is harmless even then.
  f->state.exchange(State::Parked, std::memory_order_seq_cst);
  chaos_delay();
  if (__builtin_expect(f->pending_unpark.load(std::memory_order_seq_cst), 0)) unpark_parked(f);
}

void post_yield(Worker* w, FiberRecord* f) {
  f->state.store(State::Queued, std::memory_order_release);
  if (handed_to_bound(f, nullptr)) return;
  if (chaos(2) && enqueue_anywhere(w->slot, f)) return;
  enqueue_local(w, f);
  // What it made room for is in no queue any more: sysmon may have looked just then, and gone to sleep.
  entry_fence();
  sysmon_poke();
}

void post_turn(Worker* w, FiberRecord* f) { post_yield(w, f); }

void post_preempt(Worker* w, FiberRecord* f) {
  f->state.store(State::Queued, std::memory_order_release);
  if (handed_to_bound(f, nullptr)) return;
  if (chaos(2) && enqueue_anywhere(w->slot, f)) return;
  if (f->in_libc) global_queue.push_front(f);  // it may hold one of libc's locks
  else if (is_hog(f)) global_queue.push(f);    // all hogs in one line: slots with few of them would give more to each
  else enqueue_local(w, f);                    // where its data are in the cache
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_if_needed();
}

// ---- idle ----

void add_free_slot(Slot* s) {  // IdleLock
  s->holder.store(nullptr, std::memory_order_relaxed);
  if (too_many_slots()) {
    circulating.store(circulating.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
    s->retired.store(true, std::memory_order_relaxed);
    s->free_next = retired_slots;
    retired_slots = s;
    return;
  }
  s->free_next = free_slots;
  free_slots = s;
  free_slot_count.store(free_slot_count.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
}

Slot* pop_free_slot() {  // IdleLock
  Slot* s = free_slots;
  if (!s) return nullptr;
  free_slots = s->free_next;
  free_slot_count.store(free_slot_count.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  return s;
}

Worker* pop_idle_worker() {  // IdleLock
  Worker** p = &idle_workers;
  if (!*p) return nullptr;
  if (*p == poll_watcher.load(std::memory_order_relaxed) && (*p)->idle_next) p = &(*p)->idle_next;  // it watches on
  Worker* w = *p;
  *p = w->idle_next;
  w->idle = false;
  return w;
}

}  // namespace

void hold_slot(Worker* w, Slot* s) {
  w->slot = s;
  s->holder.store(w, std::memory_order_release);
}

bool take_free_slot(Worker* w) {
  if (free_slot_count.load(std::memory_order_relaxed) == 0) return false;
  SpinGuard guard(idle_lock);
  Slot* s = pop_free_slot();
  if (!s) return false;
  hold_slot(w, s);
  return true;
}

namespace {

void stop_searching(Worker* w) {
  if (!w->searching) return;
  w->searching = false;
  if (searching.fetch_sub(1, std::memory_order_seq_cst) == 1 && work_queued()) wake_if_needed();
}

// True if the slot's `next` has been there for kStealAgeUs, during which its holder went on to no other fiber. The thief keeps the
// time, so that who sets `next` need not look at a clock, which costs as much as two locked instructions.
bool is_old(Worker* w, Slot* s) {
  FiberRecord* next = s->next.load(std::memory_order_relaxed);
  if (!next) return false;
  Worker* holder = s->holder.load(std::memory_order_acquire);
  if (!holder) return true;
  uint32_t heartbeat = holder->heartbeat.load(std::memory_order_relaxed);
  uint64_t age = cycles() - w->watched_since;
  if (w->watched == s && w->watched_next == next && w->watched_heartbeat == heartbeat) return age > kStealAgeUs * cycles_per_us;
  // One at a time: another's turn comes when this one is of no use any more.
  if (w->watched && w->watched != s && age <= 2 * kStealAgeUs * cycles_per_us) return false;
  w->watched = s;
  w->watched_next = next;
  w->watched_heartbeat = heartbeat;
  w->watched_since = cycles();
  return false;
}

FiberRecord* steal(Worker* w) {
  uint32_t n = slot_count.load(std::memory_order_acquire);
  w->random = w->random * 1664525 + 1013904223;
  uint32_t start = w->random >> 16;
  for (uint32_t i = 0; i < n; i++) {
    Slot* s = slots[(start + i) % n];
    FiberRecord* f;
    if ((f = s->inbox.pop())) return f;
    if (s == w->slot) continue;
    if ((f = s->local.steal_into(w->slot->local)) || (is_old(w, s) && (f = take_next(s)))) {
      w->steals++;
      FIBERTHREAD_PROBE2("steal", f, w);
      if (watched(kWatchTrace)) watch_stolen(f, s->index);
      return f;
    }
  }
  return nullptr;
}

void leave_idle(Worker* w) {  // IdleLock
  if (timer_watcher == w) {
    timer_watcher = nullptr;
    watch_deadline = kNever;
  }
  if (poll_watcher.load(std::memory_order_relaxed) == w) poll_watcher.store(nullptr, std::memory_order_relaxed);
  if (!w->idle) return;
  for (Worker** p = &idle_workers; *p; p = &(*p)->idle_next)
    if (*p == w) {
      *p = w->idle_next;
      break;
    }
  w->idle = false;
}

// Gives the slot back and sleeps until there may be work. Returns with or without a slot.
void go_idle(Worker* w) {
  apply_mask(w, kIdleMask);  // a sleeping worker stands for no fiber, so it takes no signal
  uint64_t deadline;
  bool counted = w->searching, watches = false;
  PollEvents events;
  {
    SpinGuard guard(idle_lock);
    // Before it is in the list: whoever finds it there may give it a slot and count it as searching anew.
    w->searching = false;
    if (w->slot) {
      chaos_delay();
      add_free_slot(w->slot);
      w->slot = nullptr;
    }
    w->wake.store(0, std::memory_order_relaxed);
    w->idle_next = idle_workers;
    idle_workers = w;
    w->idle = true;
    deadline = next_timer();
    if (deadline < watch_deadline) {
      timer_watcher = w;
      watch_deadline = deadline;
    } else {
      deadline = kNever;
    }
    // The last to fall asleep watches in any case. While all slots are in use nobody does: it could run nothing, and those who have them
    // look for themselves.
    bool all_idle = free_slot_count.load(std::memory_order_relaxed) == circulating.load(std::memory_order_relaxed);
    if (free_slots && poll_active() && !poll_watcher.load(std::memory_order_relaxed) && (all_idle || !attended_without(w))) {
      poll_watcher.store(w, std::memory_order_relaxed);
      watches = true;
    }
  }
  if (counted) searching.fetch_sub(1, std::memory_order_seq_cst);
  chaos_delay();
  // The slot is free and nobody counts on us as searching, before we look at the queues once more; pairs with the fence
  // between queueing and wake_if_needed() elsewhere: one of the two sees the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool queued = work_queued();
  // Without a free slot there is nothing that we can do for it; sysmon may.
  if (queued && free_slot_count.load(std::memory_order_seq_cst) == 0) {
    sysmon_poke();
    queued = false;
  }
  chaos_delay();
  // The last to go: if nobody is left who could wake anybody, sysmon says so. It may sleep since long before.
  if (!queued && free_slot_count.load(std::memory_order_relaxed) == circulating.load(std::memory_order_relaxed)) sysmon_poke();
  if (watches) {
    w->in_poller.exchange(1, std::memory_order_seq_cst);
    if (!queued && w->wake.load(std::memory_order_seq_cst) == 0) poll_sleep(events, deadline);
    w->in_poller.store(0, std::memory_order_relaxed);
  } else if (!queued && now_ns() < deadline)
    while (w->wake.load(std::memory_order_acquire) == 0) {
      long r = futex_wait(&w->wake, 0, deadline == kNever ? 0 : deadline);
      if (r == -ETIMEDOUT) break;
    }
  recent_ns.store(now_ns(), std::memory_order_relaxed);
  {
    SpinGuard guard(idle_lock);
    leave_idle(w);
  }
  if (!w->slot) take_free_slot(w);
  if (w->slot && !w->searching) {
    w->searching = true;
    searching.fetch_add(1, std::memory_order_seq_cst);
  }
  if (!watches) return;
  entry_fence();  // sysmon's membarrier is the other half: it sees that, or we that it sleeps
  sysmon_poke();  // nobody watches now
  if (events.n && poll_dispatch(events)) {
    harvester.store(w, std::memory_order_relaxed);
    harvested_at.store(cycles(), std::memory_order_relaxed);
  }
}

// By who holds the slot, or, if nobody does, under IdleLock: what waits in it is the others' then.
void empty_slot(Slot* s) {
  while (FiberRecord* f = s->local.pop()) global_queue.push(f);
  if (FiberRecord* f = take_next(s)) global_queue.push(f);
  while (FiberRecord* f = s->inbox.pop()) global_queue.push(f);
}

// Gives up a slot for which there is no use any more.
void give_up_slot(Worker* w) {
  Slot* s = w->slot;
  empty_slot(s);
  {
    SpinGuard guard(idle_lock);
    add_free_slot(s);
    w->slot = nullptr;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (work_queued()) wake_if_needed();
}

// In worker context: the next fiber to run, after however much sleep.
FiberRecord* find(Worker* w) {
  for (;;) {
    FiberRecord* f;
    if (__builtin_expect(too_many_slots(), 0) && w->slot) give_up_slot(w);
    if (!w->slot && !take_free_slot(w)) {
      // A timer that is due is nobody's if all who hold slots are asleep in the kernel, and sysmon may not know of it.
      run_timers(now_ns());
      if (next_timer() != kNever) sysmon_watch_timers();
      block_put_kept(w);  // there may be many spares
      go_idle(w);
      continue;
    }
    if ((f = pick(w))) return f;
    run_timers(now_ns());
    look_at_poller(w);
    if ((f = pick(w))) return f;
    if (!w->searching) {
      w->searching = true;
      searching.fetch_add(1, std::memory_order_seq_cst);
    }
    uint64_t start = cycles();
    bool made;
    do {
      if ((f = steal(w)) || (f = pick(w))) {
        w->spin_us = kSpinUs;
        return f;
      }
      if ((made = block_populate())) start = cycles();
      else for (int i = 0; i < 8; i++) cpu_relax();
    } while (made || cycles() - start < w->spin_us * cycles_per_us);
    if (look_at_poller(w) && (f = pick(w))) return f;
    go_idle(w);
    // Would a full search have found it? Where the next work is always further away, each search takes its time from others: from the
    // program's other end, if that is on the same machine.
    w->spin_us = cycles() - start < 2 * kSpinUs * cycles_per_us ? kSpinUs : w->spin_us / 2;
  }
}

}  // namespace

// What find() is to a bound worker. Null: there is no fiber any more.
namespace {
FiberRecord* await_handed(Worker* w) {
  apply_mask(w, kIdleMask);
  if (next_timer() != kNever) sysmon_watch_timers();
  __atomic_store_n(&w->idle, true, __ATOMIC_RELEASE);
  FiberRecord* f = nullptr;
  CordRecord* c = w->cord;
  auto others_ready = [&] { return c && !c->alone.load(std::memory_order_relaxed) && !c->ready.empty(); };
  while (w->bound && !w->leaves.load(std::memory_order_acquire)) {
    if ((f = c ? pick_of_cord(w) : w->handed.exchange(nullptr, std::memory_order_acq_rel))) break;
    if (c) {
      run_timers(now_ns());
      if (poll_active()) poll_look();
      if (poll_active() && !poll_watched()) sysmon_poke();
    }
    w->wake.exchange(0, std::memory_order_seq_cst);
    if (!w->handed.load(std::memory_order_seq_cst) && !others_ready() && !w->leaves.load(std::memory_order_seq_cst)) futex_wait(&w->wake, 0);
  }
  __atomic_store_n(&w->idle, false, __ATOMIC_RELEASE);
  return f;
}
}  // namespace

[[noreturn]] void worker_loop(Worker* w) {
  for (;;) {
    run_post(w);
    if (w->leaves.load(std::memory_order_acquire)) leave_worker(w);
    FiberRecord* f = w->bound ? await_handed(w) : find(w);
    stop_searching(w);
    if (next_timer() != kNever) sysmon_watch_timers();
    if (!f || handed_to_bound(f, w)) continue;
    if (watched(kWatchCpu)) account(w, nullptr);
    if (watched(kWatchTrace)) watch_begins(w);
    prepare_run(w, f);
    switch_context(&w->context, &f->context);
  }
}

uint32_t slots_wanted() { return wanted.load(std::memory_order_relaxed); }

bool want_slots(uint32_t n) {
  if (n > kMaxSlots) n = kMaxSlots;
  SpinGuard guard(idle_lock);
  wanted.store(n, std::memory_order_release);
  while (circulating.load(std::memory_order_relaxed) < n) {
    Slot* s = retired_slots;
    if (s) {
      retired_slots = s->free_next;
      s->retired.store(false, std::memory_order_relaxed);
    } else {
      uint32_t made = slot_count.load(std::memory_order_relaxed);
      void* mem = made == kMaxSlots ? MAP_FAILED : slots[made];  // of before a fork
      if (!mem)
        mem = reinterpret_cast<void*>(raw_syscall(SYS_mmap, 0, sizeof(Slot), PROT_READ | PROT_WRITE,
                                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
      if (reinterpret_cast<uintptr_t>(mem) > ~uintptr_t{4095}) {
        wanted.store(circulating.load(std::memory_order_relaxed), std::memory_order_release);
        return false;
      }
      if (!slots[made]) {
        slots[made] = new (mem) Slot;
        slots[made]->index = made;
      }
      s = slots[made];
      slot_count.store(made + 1, std::memory_order_release);
    }
    circulating.store(circulating.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    add_free_slot(s);
  }
  return true;
}

// ---- what the rest of sched uses ----

bool idle_slots() { return free_slot_count.load(std::memory_order_relaxed) != 0; }
Slot** all_slots(uint32_t* count) {
  *count = slot_count.load(std::memory_order_acquire);
  return slots;
}

bool poll_watched() { return poll_watcher.load(std::memory_order_relaxed); }

void poll_get_watcher() {
  if (attended_without(nullptr)) return;
  SpinGuard guard(idle_lock);
  if (!poll_watched() && idle_workers && free_slots) get_up(idle_workers);
}

void poll_wake_again() {
  Worker* w = poll_watcher.load(std::memory_order_relaxed);
  if (w && w != tls_worker && w->wake.load(std::memory_order_acquire)) poll_wake();
}

bool work_queued() {
  if (!global_queue.empty()) return true;
  uint32_t n = slot_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++)
    if (slot_has_work(slots[i])) return true;
  return false;
}

uint32_t queued_count() {
  uint32_t total = global_queue.size();
  uint32_t n = slot_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++)
    total += slots[i]->local.size() + !slots[i]->inbox.empty() + (slots[i]->next.load(std::memory_order_relaxed) != nullptr);
  return total;
}

void balance_queues() {
  uint32_t n = slot_count.load(std::memory_order_acquire), total = 0;
  for (uint32_t i = 0; i < n; i++) total += slots[i]->local.size();
  // Everybody is busy with what he has.
  for (uint32_t i = 0; i < n; i++)
    if (slots[i]->retired.load(std::memory_order_relaxed))
      while (FiberRecord* f = slots[i]->inbox.pop()) global_queue.push(f);
  uint32_t fair = total / (wanted.load(std::memory_order_relaxed) + 1) + 2;
  for (uint32_t i = 0; i < n; i++)
    for (uint32_t moved = 0; moved < kMostMoved && slots[i]->local.size() > fair && !slots[i]->local.keeps_order(); moved++)
      if (FiberRecord* f = slots[i]->local.pop()) global_queue.push(f);
}

uint64_t next_timer() {
  uint64_t first = kNever;
  uint32_t n = slot_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++) {
    uint64_t t = slots[i]->timers.next();
    if (t < first) first = t;
  }
  return first;
}

void run_timers(uint64_t now) {
  uint32_t n = slot_count.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; i++) slots[i]->timers.run(now);
}

// After work was queued (and a full fence): gets somebody to look, unless somebody does.
void wake_if_needed() {
  if (free_slot_count.load(std::memory_order_relaxed) == 0) {
    sysmon_poke();  // all run; but some may be asleep in the kernel
    return;
  }
  uint32_t zero = 0;
  if (searching.load(std::memory_order_relaxed) != 0 ||
      !searching.compare_exchange_strong(zero, 1, std::memory_order_seq_cst, std::memory_order_relaxed))
    return;
  Slot* s;
  Worker* w = nullptr;
  {
    SpinGuard guard(idle_lock);
    s = pop_free_slot();
    if (s && (w = pop_idle_worker())) {
      hold_slot(w, s);
      w->searching = true;
    }
  }
  if (w) {
    get_up(w);
    return;
  }
  if (s && (w = start_worker(s))) return;
  if (s) {
    SpinGuard guard(idle_lock);
    add_free_slot(s);
  }
  searching.fetch_sub(1, std::memory_order_seq_cst);
  sysmon_poke();
}

bool hand_slot_to_spare(Slot* s) {
  Worker* w;
  // Before the worker can know that it is counted, and stop.
  searching.fetch_add(1, std::memory_order_seq_cst);
  {
    SpinGuard guard(idle_lock);
    w = pop_idle_worker();
    if (w) {
      hold_slot(w, s);
      w->searching = true;
    }
  }
  if (w) {
    get_up(w);
    return true;
  }
  if (start_worker(s)) return true;
  searching.fetch_sub(1, std::memory_order_seq_cst);
  SpinGuard guard(idle_lock);
  add_free_slot(s);
  return false;
}

void empty_free_slots() {
  SpinGuard guard(idle_lock);
  for (Slot* s = free_slots; s; s = s->free_next) empty_slot(s);
}

void slots_reset() {
  idle_lock.reset();
  free_slots = nullptr;
  retired_slots = nullptr;
  free_slot_count.store(0);
  circulating.store(0);
  wanted.store(0);
  idle_workers = nullptr;
  timer_watcher = nullptr;
  watch_deadline = kNever;
  poll_watcher.store(nullptr);
  harvester.store(nullptr);
  searching.store(0);
  uint32_t n = slot_count.load();
  for (uint32_t i = 0; i < n; i++) {
    Slot* s = slots[i];
    s->local.reset();
    s->inbox.reset();
    s->next.store(nullptr);
    s->timers.reset();
    s->holder.store(nullptr);
    s->retired.store(false);
  }
  slot_count.store(0);
  global_queue.reset();
}

void sched_block_signals(uint64_t* old) {
  uint64_t all = kIdleMask;  // without kLibcSetxidSignal, which the model thread inherits and tcb_init() needs there
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&all), arg(old), 8);
}
void sched_restore_signals(uint64_t old) { raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&old), 0, 8); }

void sched_apply_mask() {
  FiberRecord* me = self();
  if (!me->kernel) apply_mask(me->worker, me->sigmask);
  else raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&me->sigmask), 0, 8);
}

// ---- fiber.h ----

std::atomic<uint32_t> clock_settings{1};

uint64_t now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec);
}

namespace {

bool park_in_kernel(FiberRecord* me, uint64_t deadline) {
  if (me->called_by.load(std::memory_order_relaxed)) release_caller(me);
  me->kernel_word.store(0, std::memory_order_relaxed);
  // As in post_park(); there is no stack to leave.
  me->state.exchange(State::Parked, std::memory_order_seq_cst);
  bool give_up = me->pending_unpark.load(std::memory_order_seq_cst), in_time = true;
  while (me->kernel_word.load(std::memory_order_acquire) == 0) {
    if (give_up) {
      State parked = State::Parked;
      if (me->state.compare_exchange_strong(parked, State::Running, std::memory_order_acq_rel)) return in_time;
      // An unpark won: its store to kernel_word is coming, and must not hit a later wait.
      while (me->kernel_word.load(std::memory_order_acquire) == 0) cpu_relax();
      break;
    }
    long r = futex_wait(&me->kernel_word, 0, deadline == kNever ? 0 : deadline, deadline != kNever && deadline & kFollowsRealtime);
    give_up = r == -ETIMEDOUT || r == -EINTR;
    in_time = r != -ETIMEDOUT;
  }
  me->state.store(State::Running, std::memory_order_release);
  return in_time;
}

}  // namespace

bool park_if(const std::atomic<uint32_t>* flag, uint32_t expected, const ParkReason& reason, uint64_t deadline) {
  FiberRecord* me = self();
  if (chaos(8)) yield();
  Busy busy;
  if (me->pending_unpark.load(std::memory_order_relaxed)) {
    // Exchanged: what its setter wrote before is seen by the look at the condition that follows.
    me->pending_unpark.exchange(0, std::memory_order_seq_cst);
    if (watched(kWatchPark)) debug_line("park", me, "does not park, as an unpark was latched: ", reason.what, reason.object);
    return true;
  }
  // Only to save a switch: an unpark that follows the change of the flag is not lost.
  if (flag->load(std::memory_order_acquire) != expected) {
    if (watched(kWatchPark)) debug_line("park", me, "does not park, as what it waits for has changed: ", reason.what, reason.object);
    return true;
  }
  chaos_delay();
  if (__builtin_expect(tls_vforked, 0)) {
    // What wakes us wakes the parent. Such a child is to wait for nothing; those that do shall get on somehow.
    constexpr long kNap[2] = {0, 200'000};
    raw_syscall(SYS_nanosleep, arg(kNap), 0);
    return !passed(me, deadline);
  }
  me->reason = reason;
  FIBERTHREAD_PROBE3("park", me, reason.what, reason.object);
  if (me->kernel) return park_in_kernel(me, deadline);
  me->preempted.store(0, std::memory_order_relaxed);
  me->worker->depth_first = reason.what == kJoin;
  me->since = recent_ns.load(std::memory_order_relaxed);
  if (deadline == kNever) {
    suspend(me, post_park);
    return true;
  }
  Timer timer{me, deadline};
  {
    Entry entry(me->worker);
    Slot* s = me->worker->slot;
    (s ? s : slots[0])->timers.add(timer);
    me->worker->timer_added = true;
  }
  suspend(me, post_park);
  chaos_delay();
  timer.wheel->cancel(timer);
  return !passed(me, deadline);
}

void unpark(FiberRecord* f) {
  State s = f->state.load(std::memory_order_acquire);
  for (;;) {
    chaos_delay();
    switch (s) {
      case State::Parked:
        if (!f->state.compare_exchange_weak(s, State::Queued, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        FIBERTHREAD_PROBE1("unpark", f);
        if (watched(kWatchWake)) debug_line("wake", f, "is woken");
        if (f->kernel) {
          f->kernel_word.store(1, std::memory_order_release);
          futex_wake(&f->kernel_word, 1);
        } else {
          Busy busy;
          enqueue_woken(f);
        }
        return;
      case State::Running:
      case State::Queued:
        f->pending_unpark.exchange(1, std::memory_order_seq_cst);
        if (watched(kWatchWake)) debug_line("wake", f, "is not parked: latched");
        chaos_delay();
        s = f->state.load(std::memory_order_seq_cst);
        if (s == State::Parked) continue;  // it may have parked between, without a look at the latch
        return;
      default:
        return;
    }
  }
}

void unpark_in_order(FiberRecord* f) {
  Busy busy;
  Worker* w = this_worker();
  if (!w) return unpark(f);
  Entry entry(w);
  // It will stand in the queue behind the one in `next`, which must not be passed over for having had its turns.
  if (w->slot && w->slot->next.load(std::memory_order_relaxed)) w->next_streak = 0;
  unpark(f);
  if (w->slot) w->slot->local.keep_order();
}

void park_for(FiberRecord* me, FiberRecord* first) {
  me->preempted.store(0, std::memory_order_relaxed);
  me->worker->depth_first = false;
  me->since = recent_ns.load(std::memory_order_relaxed);
  suspend(me, post_park, first);
}

void interrupt(FiberRecord* f, uint32_t bits) {
  f->interrupts.fetch_or(bits, std::memory_order_seq_cst);
  chaos_delay();
  unpark(f);
}

bool may_park() {
  FiberRecord* me = tls_current;
  if (!me || me->kernel || tls_vforked) return false;
  return !me->bound.load(std::memory_order_relaxed) || (cord_of(me) && !in_cord_callback());
}

bool keeps_others_waiting() {
  if (!may_park()) return false;
  Busy busy;
  Worker* w = tls_current->worker;
  Entry entry(w);
  return !w->slot || slot_has_work(w->slot);
}

bool yield() {
  FiberRecord* me = self();
  if (!me->kernel && !tls_vforked) {
    Busy busy;
    Worker* w = me->worker;
    Worker* own = me->bound.load(std::memory_order_relaxed);
    bool others = own != w && (own || me->called_by.load(std::memory_order_relaxed));  // it moves there; its caller runs on
    if (own == w) {
      others = w->cord && !in_cord_callback() && !w->cord->ready.empty();
    } else if (!others) {
      Entry entry(w);
      others = !w->slot || slot_has_work(w->slot) || !global_queue.empty();
    }
    if (others) {
      w->depth_first = false;
      suspend(me, post_yield);
      return true;
    }
  }
  if (me->called_by.load(std::memory_order_relaxed)) release_caller(me);  // of a kernel thread, or a bound fiber
  raw_syscall(SYS_sched_yield);
  return false;
}

void end_turn() {
  if (tls_busy || !may_park()) return;
  FiberRecord* me = tls_current;
  Busy busy;
  Worker* w = me->worker;
  if (w->bound) return;
  uint32_t run = w->heartbeat.load(std::memory_order_relaxed);
  uint64_t now = cycles();
  if (w->turn != run) {
    w->turn = run;
    w->turn_began = now;
    return;
  }
  auto over = [&](uint32_t us) { return static_cast<int64_t>(now - w->turn_began) >= static_cast<int64_t>(us * cycles_per_us); };
  if (!over(kTurnUs)) return;
  {
    Entry entry(w);
    if (!w->slot || (w->slot->local.size() > kCrowd && !over(kLongTurnUs))) return;
    w->turn_began = now;
    look_at_poller(w);
    if (!slot_has_work(w->slot) && global_queue.empty()) return;
  }
  me->preempted.store(0, std::memory_order_relaxed);  // no hog
  w->depth_first = false;
  suspend(me, post_turn);
}

namespace {
// The running fiber goes on without a slot. Inside an Entry.
void hand_own_slot(Worker* w) {
  Slot* s = w->slot;
  w->slot = nullptr;
  // Sysmon may have read the slot just before, and waits for us to leave: it must not think that nothing has happened.
  w->heartbeat.store(w->heartbeat.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  hand_slot_to_spare(s);
}
}  // namespace

void Blocking::begin(bool short_ones) {
  FiberRecord* me = self();
  if (me->kernel || me->bound.load(std::memory_order_relaxed) || tls_vforked) return;
  Busy busy;
  Worker* w = me->worker;
  Entry entry(w);
  if (!w->slot || !(work_queued() || chaos(2))) return;
  statistics.handovers.fetch_add(1, std::memory_order_relaxed);
  FIBERTHREAD_PROBE1("hand-over", w);
  if (watched(kWatchTrace)) w->taken_at.store(cycles(), std::memory_order_relaxed);
  if (watched(kWatchTrace | kWatchSysmon)) watch_handed_over(w);
  hand_own_slot(w);
  if (!short_ones) Entry::count_loss(w);
}

void sched_bind_to_initial() {
  FiberRecord* me = self();
  if (me->kernel) return;
  Busy busy;
  Worker* w = me->worker;
  if (!w->initial) return;
  Entry entry(w);
  Worker* none = nullptr;
  if (!me->bound.compare_exchange_strong(none, w, std::memory_order_acq_rel)) return;
  w->bound = me;
  if (w->slot) hand_own_slot(w);
}

void Blocking::end() {
  FiberRecord* me = self();
  if (me->kernel || me->bound.load(std::memory_order_relaxed) || tls_vforked) return;
  Busy busy;
  Worker* w = me->worker;
  Entry entry(w);
  if (watched(kWatchTrace)) watch_came_back(w);
  // Without one it goes on all the same, until it next waits or is preempted: it may hold what others wait for. The entry may
  // just have bound it, for its habit.
  if (!w->slot && !me->bound.load(std::memory_order_relaxed)) take_free_slot(w);
}

bool preempt_wanted(FiberRecord* f) {
  Worker* w = f->worker;
  if (Worker* b = f->bound.load(std::memory_order_relaxed)) return b != w;
  if (w->revoked.load(std::memory_order_relaxed) == kTaken) return true;
  return !w->slot || slot_has_work(w->slot) || !global_queue.empty();
}

void preempt_switch_out(FiberRecord* me) {
  Busy busy;
  me->preempted.store(me->preempted.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  me->worker->preemptions.fetch_add(1, std::memory_order_relaxed);
  FIBERTHREAD_PROBE2("preempt", me, me->worker);
  suspend(me, post_preempt);
}

}  // namespace fiberthread
