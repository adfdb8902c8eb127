// SPDX-License-Identifier: MIT
#include "sched/cord.h"

#include <errno.h>

#include "sched/chaos.h"
#include "sched/life/fork.h"
#include "sched/worker.h"

namespace fiberthread {

int cord_begin(CordRecord* c) {
  FiberRecord* me = self();
  if (me->run.kernel) return ENOTSUP;
  if (int e = sched_bind(me)) return e;
  Busy busy;
  Worker* w = me->run.worker;
  w->thread.tainted = false;  // it is like the process's threads, until sched_bind() is asked for more
  w->run.cord = c;            // we are on it, so no other fiber runs or is woken there yet
  c->worker.store(w, std::memory_order_release);
  return 0;
}

bool cord_end(CordRecord* c) {
  Busy busy;
  SpinGuard guard(c->lock);
  if (c->fibers == 0) c->ended = true;
  return c->ended;
}

bool cord_admit(CordRecord* c, FiberRecord* f) {
  Busy busy;
  SpinGuard guard(c->lock);
  Worker* none = nullptr;
  if (c->ended || !f->run.bound.compare_exchange_strong(none, c->worker.load(std::memory_order_acquire), std::memory_order_acq_rel))
    return false;
  c->fibers++;
  FiberRecord*& bucket = c->by_id[f->identity.id % CordRecord::kBuckets];
  f->run.list_next = bucket;
  bucket = f;
  return true;
}

void cord_left(CordRecord* c, FiberRecord* f) {
  FiberRecord* scheduler = c->worker.load(std::memory_order_relaxed)->bond.fiber;
  c->lock.lock();
  FiberRecord** p = &c->by_id[f->identity.id % CordRecord::kBuckets];
  while (*p != f) p = &(*p)->run.list_next;
  *p = f->run.list_next;
  bool last = --c->fibers == 0;
  c->lock.unlock();  // we do not touch `c` after this; the scheduler fiber takes the lock before it ends
  chaos_delay();
  if (last) unpark(scheduler);
}

CordRecord* cord_of(const FiberRecord* f) {
  Worker* w = f->run.bound.load(std::memory_order_acquire);
  return w ? w->run.cord : nullptr;
}

bool in_cord_callback() {
  FiberRecord* me = tls_current;
  CordRecord* c = me ? cord_of(me) : nullptr;
  return c && c->alone.load(std::memory_order_relaxed);
}

void cord_each(CordRecord* c, bool (*visit)(FiberRecord*, void*), void* data) {
  Busy busy;
  SpinGuard guard(c->lock);
  for (FiberRecord* f : c->by_id)
    for (; f; f = f->run.list_next)
      if (!visit(f, data)) return;
}

FIBERTHREAD_IN_FORK_CHILD(Cords, cords, [](FiberRecord*) {
  for (Worker* w = all_workers(); w; w = w->thread.all_next)
    // The record of a cord whose scheduler fiber has ended may be freed already.
    if (FiberRecord* f = w->bond.fiber; w->run.cord && f && f->run.state.load() != State::Done) w->run.cord->lock.reset();
})

}  // namespace fiberthread
