// SPDX-License-Identifier: MIT
#include "shim/embed.h"

#include <pthread.h>

#include "sched/embedder.h"
#include "shim/cancel.h"
#include "shim/mutex.h"
#include "shim/posix_timer.h"
#include "shim/signal.h"
#include "shim/signal_frame.h"
#include "shim/signal_parts.h"

namespace fiberthread {
namespace {

// Detaches the kernel thread of a fiber of the fiber API, which makes these joinable, and takes back a detached one only when that ends.
// Threads of libc's own have no function in their record. libc itself detaches them.
void detach(FiberRecord* f) {
  if (f->identity.start) pthread_detach(pthread_self());
}

}  // namespace

void embed() {
  Embedder e;
  e.before_start = signal_take_over;
  e.at_safe_point = signal_at_safe_point;
  e.end_requested = cancel_due;
  e.end_requested_at = cancel_due_at;
  e.end_now = cancel_self;
  e.poked = cancel_poked;
  e.must_not_stop_at = signals::frame_ends_at;
  e.take_at_tick = signals::take_at_tick;
  e.deliver = signals::deliver_at_tick;
  e.inject = signals::frame_inject;
  e.thread_adopted = cancel_adopt;
  e.thread_ends = private_robust_mutexes_owner_died;
  e.thread_unjoined = detach;
  e.refused_by = signals::refused_asleep;
  e.timers_set = timers_set;
  e.on_sysmon = signals::on_sysmon;
  sched_embed(e);
}

}  // namespace fiberthread
