// SPDX-License-Identifier: MIT
// Reasons for a fiber's waits to end: kInterruptEnd is set while there is a reason, and it is not held back.
#include "sched/chaos.h"
#include "sched/worker.h"

namespace fiberthread {

namespace {

// Sets or clears kInterruptEnd by the reasons. Called with join.lock held. True: the caller must unpark f once the lock is released.
bool follow_end_reasons(FiberRecord* f) {
  bool set = f->ends.reasons && !f->ends.held;
  if (set) f->run.interrupts.fetch_or(kInterruptEnd, std::memory_order_seq_cst);
  else f->run.interrupts.fetch_and(~uint32_t{kInterruptEnd}, std::memory_order_relaxed);
  return set;
}

}  // namespace

void add_end_reason(FiberRecord* f) {
  Busy busy;
  {
    SpinGuard guard(f->join.lock);
    f->ends.reasons++;
    if (!follow_end_reasons(f)) return;
  }
  chaos_delay();
  unpark(f);
}

bool end_waits_of(FiberRecord* f, bool (*lives)(FiberRecord*, const void*), const void* data) {
  Busy busy;
  {
    SpinGuard guard(f->join.lock);
    if (!lives(f, data)) return false;
    if (f->ends.asked) return true;
    f->ends.asked = true;
    f->ends.reasons++;
    if (!follow_end_reasons(f)) return true;
  }
  chaos_delay();
  unpark(f);
  return true;
}

void drop_end_reason(FiberRecord* me) {
  Busy busy;
  SpinGuard guard(me->join.lock);
  me->ends.reasons--;
  follow_end_reasons(me);
}

bool hold_end(FiberRecord* me, bool hold) {
  Busy busy;
  SpinGuard guard(me->join.lock);
  bool was = me->ends.held;
  me->ends.held = hold;
  follow_end_reasons(me);
  return was;
}

}  // namespace fiberthread
