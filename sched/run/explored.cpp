// SPDX-License-Identifier: MIT
// How the scheduler takes its order from sched/explore/. All runnable fibers stand in the global queue.
#include <poll.h>

#include "sched/explore/explore.h"
#include "sched/observe/deadlock.h"
#include "sched/poller.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"

namespace fiberthread {
namespace {

constexpr uint64_t kSoon = 1'000'000'000;  // ns. A timer that is due later does not fire before all others have had their turns
constexpr uint64_t kOutside = 10'000'000;  // ns. So long may events from outside come before time jumps to the next timer

uint32_t choose(FiberRecord* me) {
  FiberRecord* at = global_queue.first();
  auto next = [](void* p) {
    auto** at = static_cast<FiberRecord**>(p);
    FiberRecord* f = *at;
    if (f) *at = f->run.queue_next;
    return f;
  };
  uint64_t due = next_timer();
  return explore_choose(me, next, &at, due != kNever && due < now_ns() + kSoon);
}

void fire_next_timer() {
  uint64_t due = next_timer();
  if (due == kNever) return;
  explore_jump(due);
  run_timers(due);
}

}  // namespace

FiberRecord* explored_pick() {
  Worker* w = this_worker();
  if (w->run.post == post_park && closes_cycle(w->run.previous, explore_waits_for_ever)) {
    explore_ends(ExploredEnd::Deadlock);
    report_cycle(w->run.previous);
    raw_syscall(SYS_exit_group, 1);
  }
  if (poll_active()) poll_look();
  for (;;) {
    uint32_t n = global_queue.size();
    if (!n) return nullptr;
    uint32_t i = choose(nullptr);
    if (FiberRecord* f = global_queue.take(i)) return f;
    fire_next_timer();
  }
}

bool explored_idle() {
  if (next_timer() == kNever) return false;
  if (poll_active()) {
    pollfd p{poll_descriptor(), POLLIN, 0};
    timespec t{0, kOutside};
    if (raw_syscall(SYS_ppoll, arg(&p), 1, arg(&t), 0, 8) > 0) {
      explore_outside();
      if (poll_look()) return true;
    }
  }
  fire_next_timer();
  return true;
}

void explored_point(const ExplorePoint& point, bool gives_way) {
  FiberRecord* me = tls_current;
  if (!sched_started() || !me || me->run.kernel || tls_busy || tls_vforked || me->run.bound.load(std::memory_order_relaxed)) return;
  Busy busy;
  if (!me->run.worker->run.slot) return;
  explore_note(me, point);
  if (gives_way) explore_gives_way(me);
  for (;;) {
    if (poll_active()) poll_look();
    uint32_t others = global_queue.size(), i = choose(me);
    if (i == 0) return;
    if (i <= others) {
      FiberRecord* f = global_queue.take(i - 1);
      suspend(me, post_yield, f);
      return;
    }
    fire_next_timer();
  }
}

}  // namespace fiberthread

using namespace fiberthread;

// Called by the stubs of preload/explore/ before the call `name` is made, whose first argument is `object` and which returns to `pc`. `how` is
// 1 if the call gives way to others, and 2 after the call.
extern "C" [[gnu::visibility("default")]] void fiberthread_explore_point(const char* name, uintptr_t object, uintptr_t pc, int how) {
  if (exploring) explored_point({name, object, pc, how == 2}, how == 1);
}

// For the library that sees accesses to memory.

// The calling fiber. Returns false if the caller is none that is explored.
extern "C" [[gnu::visibility("default")]] bool fiberthread_explore_fiber(ExploredFiber* f) {
  FiberRecord* me = tls_current;
  if (!exploring || !sched_started() || !me || me->run.kernel) return false;
  auto at = [](const char* p) { return reinterpret_cast<uintptr_t>(p); };
  f->number = explore_number(me);
  f->stack_low = at(me->memory.stack_low);
  f->stack_high = at(me->memory.stack_high);
  f->block_low = at(me->memory.block);
  f->block_high = f->block_low + me->memory.block_size;
  return true;
}

// Ends the process, because of this race.
extern "C" [[gnu::visibility("default")]] void fiberthread_explore_race(const Race* race) {
  if (exploring) explore_ends_by(*race);
}
