#include "sched/cord.h"

#include "sched/chaos.h"
#include "sched/worker.h"

namespace fiberthread {

int cord_begin(Cord* c) {
  FiberRecord* me = self();
  if (int e = sched_bind(me)) return e;
  Busy busy;
  Worker* w = me->worker;
  w->tainted = false;  // it is as the process's threads are, until somebody asks for more
  w->cord = c;         // we are on it: nobody runs or wakes anybody there yet
  c->worker.store(w, std::memory_order_release);
  return 0;
}

void cord_end() {
  Cord* c = cord_of(self());
  for (uint32_t n; (n = c->fibers.load(std::memory_order_acquire)) != 0;) park_if(&c->fibers, n, {"cord", c});
}

bool cord_admit(Cord* c, FiberRecord* f) {
  Busy busy;
  Worker* none = nullptr;
  if (!f->bound.compare_exchange_strong(none, c->worker.load(std::memory_order_acquire), std::memory_order_acq_rel)) return false;
  c->fibers.fetch_add(1, std::memory_order_relaxed);
  SpinGuard guard(c->lock);
  FiberRecord*& bucket = c->by_id[f->id % Cord::kBuckets];
  f->cord_next = bucket;
  bucket = f;
  return true;
}

void cord_left(Cord* c, FiberRecord* f) {
  {
    SpinGuard guard(c->lock);
    FiberRecord** p = &c->by_id[f->id % Cord::kBuckets];
    while (*p != f) p = &(*p)->cord_next;
    *p = f->cord_next;
  }
  chaos_delay();
  // Of the last one, the scheduler fiber waits for it; it cannot go on before we have left, as we are on its kernel thread.
  if (c->fibers.fetch_sub(1, std::memory_order_acq_rel) == 1) unpark(c->worker.load(std::memory_order_relaxed)->bound);
}

Cord* cord_of(const FiberRecord* f) {
  Worker* w = f->bound.load(std::memory_order_acquire);
  return w ? w->cord : nullptr;
}

bool in_cord_callback() {
  FiberRecord* me = tls_current;
  Cord* c = me ? cord_of(me) : nullptr;
  return c && c->alone.load(std::memory_order_relaxed);
}

void cord_each(Cord* c, bool (*visit)(FiberRecord*, void*), void* data) {
  Busy busy;
  SpinGuard guard(c->lock);
  for (FiberRecord* f : c->by_id)
    for (; f; f = f->cord_next)
      if (!visit(f, data)) return;
}

}  // namespace fiberthread
