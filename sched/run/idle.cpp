// SPDX-License-Identifier: MIT
// Workers that have nothing to run: which of them sleep, which of these sleeps until the next timer or in epoll, which is woken for new
// work, and which ends.
#include <errno.h>
#include <sys/prctl.h>

#include "sched/life/fork.h"
#include "sched/observe/names.h"
#include "sched/poller.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"

namespace fiberthread {

std::atomic<uint32_t> searching{0};
std::atomic<WakePays> wake_pays{WakePays::Try};

namespace {

// Under the idle lock: the list of idle workers, the one that sleeps until the next timer, and when that is due. Sysmon reads the last without
// the lock, as a hint.
Worker* idle_workers = nullptr;
uint32_t idle_count = 0;
Worker* timer_sleeper = nullptr;
std::atomic<uint64_t> timer_deadline{kNever};
// The worker that sleeps in epoll; the worker that got events last, and cycles() then.
std::atomic<Worker*> poll_watcher{nullptr};
std::atomic<Worker*> harvester{nullptr};
std::atomic<uint64_t> harvested_at{0};

constexpr uint32_t kAttendedUs = 100;  // for this long after it got events, a worker is expected to look for more

// A worker ends if no other has needed it for kLife, and more than most_idle() are idle. The worker that fell asleep last is taken
// first. A worker that was taken begins a new kLife when it comes back.
constexpr uint64_t kLife = 1'000'000'000;  // ns; a new kernel thread costs 36 us, so a burst each second costs 0.004 % for each thread
constexpr uint32_t kSpares = 2;

uint32_t most_idle() { return chaos(4) ? 0 : wanted.load(std::memory_order_relaxed) + kSpares; }

// Returns true if another worker than `w` looks at the poller all the time.
bool attended_without(Worker* w) {
  return harvester.load(std::memory_order_relaxed) != w &&
         static_cast<int64_t>(cycles() - harvested_at.load(std::memory_order_relaxed)) < static_cast<int64_t>(kAttendedUs * cycles_per_us);
}

Worker* pop_idle_worker() {  // idle lock
  Worker** p = &idle_workers;
  if (!*p) return nullptr;
  if (*p == poll_watcher.load(std::memory_order_relaxed) && (*p)->idle.next) p = &(*p)->idle.next;  // it watches on
  Worker* w = *p;
  *p = w->idle.next;
  idle_count--;
  w->idle.listed = false;
  return w;
}

void leave_idle(Worker* w) {  // idle lock
  if (timer_sleeper == w) {
    timer_sleeper = nullptr;
    timer_deadline.store(kNever, std::memory_order_relaxed);
  }
  if (poll_watcher.load(std::memory_order_relaxed) == w) poll_watcher.store(nullptr, std::memory_order_relaxed);
  if (!w->idle.listed) return;
  for (Worker** p = &idle_workers; *p; p = &(*p)->idle.next)
    if (*p == w) {
      *p = w->idle.next;
      break;
    }
  idle_count--;
  w->idle.listed = false;
}

// Takes w, the caller, out of the pool for good. Returns false if it is needed after all, or cannot end.
bool retire(Worker* w) {
  if (!may_end(w)) return false;
  SpinGuard guard(idle_lock);
  // Under the lock: nobody can give it a slot, or wake it, any more.
  if (!w->idle.listed || w->idle.wake.load(std::memory_order_relaxed) || idle_count <= most_idle() || !leave_pool()) return false;
  leave_idle(w);
  w->thread.leaves.store(true, std::memory_order_relaxed);  // for itself
  return true;
}

// The kernel ends a sleep later than it was asked to, by the thread's slack, unless something else wakes its CPU before. A wheel has rounded its
// timers up already. So the slack begins before the deadline, and timers are not later than on NPTL by both.
uint64_t slack_of(Worker* w) {
  if (w->idle.slack < 0 && !filtered.load(std::memory_order_relaxed)) w->idle.slack = raw_syscall(SYS_prctl, PR_GET_TIMERSLACK);
  return w->idle.slack > 0 ? static_cast<uint64_t>(w->idle.slack) : 0;
}

// Sleeps until the worker is woken, or `deadline` has come. If it is one of too many, it may retire.
void sleep_idle(Worker* w, uint64_t deadline, bool too_many) {
  uint64_t until = deadline;
  if (too_many) until = now_ns() + (chaos(2) ? chaos_number() % 1'000'000 : kLife);
  while (w->idle.wake.load(std::memory_order_acquire) == 0) {
    if (futex_wait(&w->idle.wake, 0, until == kNever ? 0 : until) != -ETIMEDOUT) continue;
    if (!too_many || retire(w)) break;
    // Nothing wakes it in vain from now on. If it stays because of something that passes, it may retire after its next use.
    too_many = false;
    until = deadline;
  }
}

}  // namespace

bool look_at_poller(Worker* w) {
  if (!poll_active() || !poll_look()) return false;
  harvester.store(w, std::memory_order_relaxed);
  harvested_at.store(cycles(), std::memory_order_relaxed);
  return true;
}

void get_up(Worker* w) {
  w->idle.wake.exchange(1, std::memory_order_seq_cst);
  // Sequentially consistent against go_idle().
  if (w->idle.in_poller.load(std::memory_order_seq_cst)) poll_wake();
  else futex_wake(&w->idle.wake, 1);
}

// Gives the worker's slot back, and sleeps until there may be work, or the worker must end. Returns with or without a slot.
void go_idle(Worker* w) {
  uint64_t deadline;
  place_note(w);
  bool counted = w->look.searching, watches = false, too_many;
  PollEvents events;
  {
    SpinGuard guard(idle_lock);
    // Before it is in the list: a thread that finds it there may give it a slot, and count it as searching anew.
    w->look.searching = false;
    if (w->run.slot) {
      chaos_delay();
      add_free_slot(w->run.slot);
      w->run.slot = nullptr;
    }
    w->idle.wake.store(0, std::memory_order_relaxed);
    w->idle.next = idle_workers;
    idle_workers = w;
    w->idle.listed = true;
    too_many = ++idle_count > most_idle() && !w->thread.initial;
    deadline = next_timer();
    if (deadline < timer_deadline.load(std::memory_order_relaxed)) {
      timer_sleeper = w;
      timer_deadline.store(deadline, std::memory_order_relaxed);
    } else {
      deadline = kNever;
    }
    if (deadline != kNever) too_many = false;
    // The last worker to fall asleep watches in any case. While all slots are in use no worker watches: it could run nothing, and the
    // workers with slots look for themselves.
    bool all_idle = all_slots_free(), only_reserve = !free_slots;
    if (any_free_slot() && poll_active() && !poll_watcher.load(std::memory_order_relaxed) &&
        (all_idle || only_reserve || !attended_without(w))) {
      poll_watcher.store(w, std::memory_order_relaxed);
      watches = true;
    }
  }
  if (counted) searching.fetch_sub(1, std::memory_order_seq_cst);
  chaos_delay();
  // The slot is free, and we no longer count as searching, before we look at the queues once more. The fence pairs with the one between
  // queueing and wake_if_needed() elsewhere: either that thread sees our stores, or we see its entry.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Waiting waiting = who_waits();
  bool queued = free_slot_for(waiting);
  if (waiting != Waiting::Nobody && !queued) sysmon_wake();  // we can do nothing for the queued fiber; sysmon may
  chaos_delay();
  if (observed(kObserveNames) && !queued) name_worker(w, nullptr);
  sleep_mask(w);
  // This is the last worker to fall asleep. Sysmon, which may have slept for long, then looks for a deadlock.
  if (!queued && all_slots_free()) sysmon_wake();
  if (watches) {
    w->idle.in_poller.exchange(1, std::memory_order_seq_cst);
    if (!queued && w->idle.wake.load(std::memory_order_seq_cst) == 0) poll_sleep(events, deadline, slack_of(w));
    w->idle.in_poller.store(0, std::memory_order_relaxed);
  } else if (uint64_t now = now_ns(); !queued && now < deadline) {
    sleep_idle(w, begin_of_slack(deadline, slack_of(w), now), too_many);
  }
  awake_mask(w);
  if (w->thread.leaves.load(std::memory_order_relaxed)) return;
  recent_ns.store(now_ns(), std::memory_order_relaxed);
  {
    SpinGuard guard(idle_lock);
    leave_idle(w);
  }
  move_back(w);
  if (!w->run.slot) take_free_slot(w);
  if (w->run.slot && !w->look.searching) {
    w->look.searching = true;
    searching.fetch_add(1, std::memory_order_seq_cst);
  }
  if (!watches) return;
  entry_fence();  // pairs with sysmon's membarrier: sysmon sees that there is no watcher, or we see that it sleeps
  sysmon_wake();  // no worker watches now
  if (events.n && poll_dispatch(events)) {
    harvester.store(w, std::memory_order_relaxed);
    harvested_at.store(cycles(), std::memory_order_relaxed);
  }
}

bool poll_needs_no_sysmon(Worker* w) {
  if (!poll_active() || poll_watcher.load(std::memory_order_relaxed)) return true;
  // As in go_idle().
  uint32_t free = free_slot_count.load(std::memory_order_relaxed) + (w->run.slot && !is_reserve(w->run.slot));
  if (!w->run.slot && !any_free_slot()) return true;
  if (free && free != circulating.load(std::memory_order_relaxed) && attended_without(w)) return true;
  if (!idle_workers) return false;
  get_up(idle_workers);  // it watches when it falls asleep again
  return true;
}

bool poll_left_to_sysmon() {
  if (!poll_active() || poll_watched()) return false;
  SpinGuard guard(idle_lock);
  return !poll_watched() && !idle_workers && any_free_slot();
}

bool timer_attended(uint64_t due) { return timer_deadline.load(std::memory_order_relaxed) <= due; }

bool poll_watched() { return poll_watcher.load(std::memory_order_relaxed); }

void poll_get_watcher() {
  if (attended_without(nullptr)) return;
  SpinGuard guard(idle_lock);
  if (!poll_watched() && idle_workers && any_free_slot()) get_up(idle_workers);
}

void poll_wake_again() {
  Worker* w = poll_watcher.load(std::memory_order_relaxed);
  if (w && w != tls_worker && w->idle.wake.load(std::memory_order_acquire)) poll_wake();
}

// Wakes or starts a worker to search, unless one searches. Called after work was queued, and after a full fence.
void wake_if_needed(Waiting waiting) {
  if (!free_slot_for(waiting)) {
    sysmon_wake();  // all slots are held, but some holders may be asleep in the kernel
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
      w->look.searching = true;
      will_move(w);
    }
  }
  if (w) {
    move_elsewhere(w);
    get_up(w);
    return;
  }
  if (s && start_worker(s, nullptr, true)) return;
  if (s) {
    SpinGuard guard(idle_lock);
    add_free_slot(s);
  }
  searching.fetch_sub(1, std::memory_order_seq_cst);
  sysmon_wake();
}

void wake_for_queued() {
  if (Waiting waiting = who_waits(); waiting != Waiting::Nobody) wake_if_needed(waiting);
}

bool hand_slot_to_spare(Slot* s) {
  Worker* w;
  // Before the worker can see that it is counted, and count itself out.
  searching.fetch_add(1, std::memory_order_seq_cst);
  {
    SpinGuard guard(idle_lock);
    w = pop_idle_worker();
    if (w) {
      hold_slot(w, s);
      w->look.searching = true;
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

FIBERTHREAD_IN_FORK_CHILD(Slots, idle, [](FiberRecord*) {
  idle_workers = nullptr;
  idle_count = 0;
  timer_sleeper = nullptr;
  timer_deadline.store(kNever);
  poll_watcher.store(nullptr);
  harvester.store(nullptr);
  searching.store(0);
})

}  // namespace fiberthread
