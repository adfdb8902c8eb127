// SPDX-License-Identifier: MIT
// A call: a fiber runs in place of its caller.
#include <errno.h>

#include "sched/life/parts.h"
#include "sched/observe/probe.h"
#include "sched/observe/observe.h"
#include "sched/wait.h"
#include "sched/worker.h"

namespace fiberthread {

int sched_call(FiberRecord* f, uint32_t mask) {
  FiberRecord* me = self();
  CallWait wait{me};
  f->wait.called_by.store(&wait, std::memory_order_relaxed);  // published with f
  me->wait.pins++;
  me->wait.calling = true;
  ParkReason reason{.what = "call", .object = f, .owner = f, .plain = true};
  if (f->run.kernel) {
    kernel_record_start(f);
  } else if (me->run.kernel) {
    sched_spawn(f);
  } else {
    Busy busy;
    count(me->run.worker->counts.spawned);
    FIBERTHREAD_PROBE2("spawn", f, f->identity.start);
    if (observed(kObserveStats | kObserveTrace)) observe_spawned(f);
    f->run.state.store(State::Queued, std::memory_order_release);
    me->wait.reason = reason;
    park_for(me, f);
  }
  auto over = [&] { return wait.over.load(std::memory_order_acquire) != 0; };
  // Fails if another thread is just ending the call.
  auto withdraw = [&] {
    CallWait* mine = &wait;
    return f->wait.called_by.compare_exchange_strong(mine, nullptr, std::memory_order_acq_rel);
  };
  WaitEnd end = wait_until(me, wait.over, 0, over, withdraw, reason, kNever, mask);
  me->wait.calling = false;
  wait_over(me);
  if (end == WaitEnd::Ends) embedder().end_now();
  return end == WaitEnd::Over ? 0 : ECANCELED;
}

}  // namespace fiberthread
