// SPDX-License-Identifier: MIT
#include "preload/explore/memory/order.h"

#include <pthread.h>
#include <sys/auxv.h>

#include "preload/explore/memory/races.h"
#include "preload/explore/memory/threads.h"

namespace fiberthread {

Thread threads[kMostThreads];
bool busy = false;

namespace {

uint32_t thread_count = 0;
thread_local Thread* current = nullptr;
uint32_t signals = 0;  // how many were sent
Clock signals_clock;

// What the thread does from now on is after all that others have acquired so far.
void tick(Thread* me) {
  if (grow(me->clock, me->id + 1u)) me->clock.at[me->id]++;
}

Thread* with_handle(uintptr_t handle) {
  for (uint32_t i = 0; i < thread_count; i++)
    if (threads[i].state != State::Free && threads[i].handle == handle) return &threads[i];
  return nullptr;
}

void begin_thread(Thread* t) {
  ExploredFiber f{};
  fiberthread_explore_fiber(&f);
  t->state = State::Live;
  t->number = f.number;
  t->stack_high = f.stack_high ? f.stack_high : getauxval(AT_RANDOM);
  // Another fiber may have had this memory, with nothing that orders the two.
  auto forgets = [](Cell& c, uintptr_t) { forget(c); };
  for_cells(f.stack_low, f.stack_high, forgets);
  for_cells(f.block_low, f.block_high, forgets);
}

}  // namespace

// At the end of a fiber its thread-local variables are set back, and then some more calls may come. So the next fiber there may find a value
// that is not its own.
Thread* this_thread() {
  uintptr_t handle = pthread_self();
  Thread* t = current;
  if (t && t->state == State::Live && t->handle == handle) return t;
  ExploredFiber f;
  t = with_handle(handle);
  if (!t || t->state != State::Born || !fiberthread_explore_fiber(&f)) return nullptr;
  current = t;
  begin_thread(t);
  return t;
}

void catch_up(Thread* t) {
  if (t->signals_seen != signals) {
    t->signals_seen = signals;
    join(t->clock, signals_clock);
  }
  if (t->waits_with)
    if (Sync* s = sync_of(t->waits_with, false)) join(t->clock, s->clock);
}

namespace {
// Calls f with the caller's thread, if the order of things is of interest.
template <class F>
void ordered(F f) {
  if (!memory_explored()) return;
  Guard guard;
  if (!guard) {
    lost = true;
    return;
  }
  if (Thread* t = this_thread()) {
    catch_up(t);
    f(t);
  }
}
}  // namespace

void order_release(uintptr_t object) {
  ordered([=](Thread* t) {
    if (Sync* s = sync_of(object, true)) join(s->clock, t->clock);
    tick(t);
  });
}

void order_acquire(uintptr_t object) {
  ordered([=](Thread* t) {
    if (Sync* s = sync_of(object, false)) join(t->clock, s->clock);
  });
}

void order_atomic(uintptr_t address, int order, bool reads, bool writes) {
  ordered([=](Thread* t) {
    bool acquires = order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE;
    bool releases = order >= __ATOMIC_RELEASE;
    Sync* s = sync_of(address, writes && (releases || t->at_fence.size));
    if (!s) return;
    if (reads) join(acquires ? t->clock : t->by_reads, s->clock);
    if (!writes) return;
    join(s->clock, releases ? t->clock : t->at_fence);
    if (releases) tick(t);
  });
}

void order_fence(int order) {
  ordered([=](Thread* t) {
    if (order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE) join(t->clock, t->by_reads);
    if (order < __ATOMIC_RELEASE) return;
    join(t->at_fence, t->clock);
    tick(t);
  });
}

void order_read_lock(uintptr_t lock) { order_acquire(lock); }

void order_write_lock(uintptr_t lock) {
  ordered([=](Thread* t) {
    Sync* s = sync_of(lock, true);
    if (!s) return;
    join(t->clock, s->clock);
    join(t->clock, s->readers);
    s->writer = t->id + 1u;
  });
}

void order_rw_unlock(uintptr_t lock) {
  ordered([=](Thread* t) {
    Sync* s = sync_of(lock, true);
    if (!s) return;
    bool wrote = s->writer == t->id + 1u;
    join(wrote ? s->clock : s->readers, t->clock);
    if (wrote) s->writer = 0;
    tick(t);
  });
}

void order_signal() {
  ordered([](Thread* t) {
    join(signals_clock, t->clock);
    signals++;
    tick(t);
  });
}

uintptr_t order_wait_begin(uintptr_t mutex) {
  uintptr_t before = 0;
  ordered([&](Thread* t) {
    before = t->waits_with;
    t->waits_with = mutex;
  });
  return before;
}

void order_wait_end(uintptr_t before) {
  ordered([=](Thread* t) { t->waits_with = before; });
}

void order_created(uintptr_t handle) {
  if (!memory_explored()) return;
  Guard guard;
  if (!guard) {
    lost = true;
    return;
  }
  if (!thread_count) {
    // The first that makes a thread. What it has done so far is before all else.
    Thread* t = &threads[thread_count++];
    t->handle = pthread_self();
    begin_thread(t);
    current = t;
    tick(t);
  }
  Thread* t = this_thread();
  if (!t) return;
  catch_up(t);
  Thread* born = with_handle(handle);
  for (uint32_t i = 0; i < thread_count && !born; i++)
    if (threads[i].state == State::Free) born = &threads[i];
  if (!born) {
    if (thread_count == kMostThreads - 1) return;
    born = &threads[thread_count];
    born->id = static_cast<uint8_t>(thread_count++);
  }
  // It may have the number of one that has ended. Then it is taken for the same.
  uint32_t own = value(born->clock, born->id);
  clear(born->clock);
  clear(born->by_reads);
  clear(born->at_fence);
  join(born->clock, t->clock);
  if (!grow(born->clock, born->id + 1u)) return;
  born->clock.at[born->id] = own;
  tick(born);
  born->state = State::Born;
  born->handle = handle;
  born->quiet = 0;
  born->ignored = 0;
  born->waits_with = 0;
  born->signals_seen = signals;
  tick(t);
}

void* order_join(uintptr_t handle) {
  Guard guard;
  return guard && memory_explored() ? with_handle(handle) : nullptr;
}

void order_joined(void* joined) {
  auto* ended = static_cast<Thread*>(joined);
  if (!ended) return;
  ordered([=](Thread* t) {
    join(t->clock, ended->clock);
    ended->state = State::Free;
  });
}

}  // namespace fiberthread
