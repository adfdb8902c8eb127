// SPDX-License-Identifier: MIT
// Reasons for a fiber's waits to end: kInterruptEnd is set while there is a reason, and it is not held back.
#include "sched/chaos.h"
#include "sched/life/join.h"
#include "sched/worker.h"

namespace fiberthread {

namespace {

// Sets or clears kInterruptEnd by the reasons. Called with join.lock held. True: the caller must unpark f once the lock is released.
bool follow_end_reasons(FiberRecord* f) {
  bool set = f->ends.reasons && !f->ends.held;
  if (set) {
    f->run.interrupts.fetch_or(kInterruptEnd, std::memory_order_seq_cst);
    wake_own_wait(f);
  } else {
    f->run.interrupts.fetch_and(~uint32_t{kInterruptEnd}, std::memory_order_relaxed);
  }
  return set;
}

}  // namespace

void add_end_reason(FiberRecord* f) {
  Busy busy;
  bool wakes = join_locked(f, [f] {
    f->ends.reasons++;
    return follow_end_reasons(f);
  });
  chaos_delay();
  if (wakes) unpark(f);
}

bool end_waits_of(FiberRecord* f, bool (*lives)(FiberRecord*, const void*), const void* data) {
  Busy busy;
  bool alive = false, wakes = join_locked(f, [&] {
                        alive = lives(f, data);
                        if (!alive || f->ends.asked) return false;
                        f->ends.asked = true;
                        f->ends.reasons++;
                        return follow_end_reasons(f);
                      });
  chaos_delay();
  if (wakes) unpark(f);
  return alive;
}

void drop_end_reason(FiberRecord* me) {
  join_locked(me, [me] {
    me->ends.reasons--;
    follow_end_reasons(me);
  });
}

bool hold_end(FiberRecord* me, bool hold) {
  return join_locked(me, [me, hold] {
    bool was = me->ends.held;
    me->ends.held = hold;
    follow_end_reasons(me);
    return was;
  });
}

}  // namespace fiberthread
