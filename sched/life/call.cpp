// SPDX-License-Identifier: MIT
// Running a fiber in place of the caller.
#include <errno.h>

#include "sched/life/parts.h"
#include "sched/observe/probe.h"
#include "sched/observe/watch.h"
#include "sched/wait.h"
#include "sched/worker.h"

namespace fiberthread {

int sched_call(FiberRecord* f, uint32_t mask) {
  FiberRecord* me = self();
  CallWait wait{me};
  f->called_by.store(&wait, std::memory_order_relaxed);  // published with f
  me->queued++;
  me->calling = true;
  ParkReason reason{"call", f, f};
  if (f->kernel) {
    f->fresh.store(0, std::memory_order_release);
    futex_wake(&f->fresh, 1);
  } else if (me->kernel) {
    sched_spawn(f);
  } else {
    Busy busy;
    count(me->worker->spawned);
    FIBERTHREAD_PROBE2("spawn", f, f->start);
    if (watched(kWatchStats | kWatchTrace)) watch_spawned(f);
    f->state.store(State::Queued, std::memory_order_release);
    me->reason = reason;
    park_for(me, f);
  }
  auto over = [&] { return wait.over.load(std::memory_order_acquire) != 0; };
  // If not, it is just being ended.
  auto withdraw = [&] {
    CallWait* mine = &wait;
    return f->called_by.compare_exchange_strong(mine, nullptr, std::memory_order_acq_rel);
  };
  WaitEnd end = wait_until(me, wait.over, 0, over, withdraw, reason, kNever, mask);
  me->calling = false;
  wait_over(me);
  if (end == WaitEnd::Ends) embedder().end_now();
  return end == WaitEnd::Over ? 0 : ECANCELED;
}

}  // namespace fiberthread
