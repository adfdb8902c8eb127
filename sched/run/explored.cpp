// SPDX-License-Identifier: MIT
// How the scheduler takes its order from sched/explore/. All runnable fibers stand in the global queue.
#include <poll.h>
#include <string.h>

#include "sched/arch/step.h"
#include "sched/explore/explore.h"
#include "sched/explore/step.h"
#include "sched/observe/waits.h"
#include "sched/poller.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"

namespace fiberthread {
namespace {

constexpr uint64_t kOutside = 10'000'000;  // ns. So long may events from outside come before time jumps to the next timer

uint32_t choose(FiberRecord* me, bool stop = false) {
  FiberRecord* at = global_queue.first();
  auto next = [](void* p) {
    auto** at = static_cast<FiberRecord**>(p);
    FiberRecord* f = *at;
    if (f) *at = f->run.queue_next;
    return f;
  };
  uint64_t due = next_timer();
  return explore_choose(me, next, &at, !stop && due != kNever && explore_may_fire(due), stop);
}

void fire_next_timer() {
  uint64_t due = next_timer();
  if (due == kNever) return;
  explore_jump(due);
  run_timers(due);
}

bool can_be_stopped(FiberRecord* me) {
  return sched_started() && me && !me->run.kernel && !tls_busy && !tls_vforked && !me->run.bound.load(std::memory_order_relaxed);
}

}  // namespace

FiberRecord* explored_pick() {
  Worker* w = this_worker();
  if (w->run.post == post_park && in_cycle(w->run.previous, explore_waits_for_ever)) {
    explore_ends(ExploredEnd::Deadlock);
    report_cycle(w->run.previous, nullptr, 0);
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
  if (!can_be_stopped(me)) return;
  if (step_is_open()) step_close();
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

bool explored_window(bool stopped) {
  FiberRecord* me = tls_current;
  return can_be_stopped(me) && me->run.worker->run.slot && !global_queue.empty() && explore_window(stopped);
}

bool explored_stop(const ExplorePoint& access, uint8_t written) {
  FiberRecord* me = tls_current;
  if (!can_be_stopped(me)) return false;
  Busy busy;
  if (!me->run.worker->run.slot || !explore_stop(me, access, global_queue.size())) return false;
  uint32_t i = choose(me, true);
  // The instruction has read what is there now. It is made as a whole when the fiber goes on, so it must find that again.
  char* at = reinterpret_cast<char*>(access.object);
  char read[8];
  if (written) memcpy(read, at, written);
  suspend(me, post_yield, global_queue.take(i - 1));
  if (written) memcpy(at, read, written);
  return true;
}

void* explored_start(void* argument) {
  void* (*start)(void*) = explore_begins(tls_current);
  if (explored_window(false)) begin_stepping();
  return start(argument);
}

}  // namespace fiberthread

using namespace fiberthread;

// Called by the stubs of preload/explore/ before the call `name` is made, whose first argument is `object` and which returns to `pc`. `how` is
// 1 if the call gives way to others, 2 at the point after the call, and 3 after a call where no point is. Returns true, after the call, if the
// caller must begin to step in `pc`.
extern "C" [[gnu::visibility("default")]] bool fiberthread_explore_point(const char* name, uintptr_t object, uintptr_t pc, int how) {
  if (!exploring) return false;
  if (how != 3) explored_point({name, object, pc, how == 2}, how == 1);
  return how >= 2 && explored_window(false);
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
