// SPDX-License-Identifier: MIT
#include "sched/life/join.h"

#include <errno.h>

#include "sched/chaos.h"
#include "sched/observe/probe.h"
#include "sched/observe/observe.h"
#include "sched/memory/block.h"
#include "sched/wait.h"
#include "sched/worker.h"

namespace fiberthread {

int join_register(FiberRecord* me, FiberRecord* f, StillNamed named) {
  // In NPTL's order: what is detached cannot be joined, not even by itself, and a deadlock counts before another joiner.
  if (f == me) return __atomic_load_n(&f->join.detached, __ATOMIC_ACQUIRE) ? EINVAL : EDEADLK;
  Busy busy;
  // Both locks: if two fibers join each other at the same time, one of them looks after the other has registered.
  SpinPairGuard guard(me->join.lock, f->join.lock);
  FiberRecord* joiner = __atomic_load_n(&f->join.joiner, __ATOMIC_ACQUIRE);
  bool detached = __atomic_load_n(&f->join.detached, __ATOMIC_ACQUIRE);
  if (!named(f)) return ESRCH;
  if (detached) return EINVAL;
  // As in NPTL: a fiber that has been asked to end will give up its wait for `me`.
  constexpr uint32_t kEnds = kInterruptUnwind | kInterruptLeave | kInterruptEnd;
  if (me->join.joiner == f && !(f->run.interrupts.load(std::memory_order_relaxed) & kEnds)) return EDEADLK;
  if (joiner) return EINVAL;
  f->join.joiner = me;
  me->wait.pins++;  // while we are the joiner
  return 0;
}

bool join_withdraw(FiberRecord* f) {
  Busy busy;
  chaos_delay();
  SpinGuard guard(f->join.lock);
  if (f->join.done.load(std::memory_order_relaxed)) return false;
  f->join.joiner = nullptr;
  return true;
}

bool join_wait(FiberRecord* f, void** result, uint64_t deadline, uint32_t interrupt_mask) {
  FiberRecord* me = self();
  // The latch stays as it is. The caller is registered, and an interrupt may have come since it looked for one.
  auto over = [f] { return f->join.done.load(std::memory_order_acquire) != 0; };
  WaitEnd end = wait_until(
      me, f->join.done, 0, over, [f] { return join_withdraw(f); }, {.what = kJoin, .object = f, .owner = f, .plain = true}, deadline,
      interrupt_mask);
  if (end != WaitEnd::Over) {
    if (observed(kObserveJoin)) debug_line("join", me, "waits no longer for the end of ", uint64_t{f->identity.id});
    if (end != WaitEnd::Ends) return false;
    wait_over(me);
    embedder().end_now();
  }
  Busy busy;
  f->join.lock.wait_until_free();  // then join_end() does not touch the record any more
  // The kernel thread ends soon, as no code of the program runs there any more. The kernel wakes this word as a shared futex.
  if (Worker* w = f->join.leaves_with)
    while (w->thread.kernel_tid.load(std::memory_order_acquire) == f->join.leaves_tid)
      raw_syscall(SYS_futex, arg(&w->thread.kernel_tid), 0 /* FUTEX_WAIT */, f->join.leaves_tid, 0);
  if (result) *result = f->identity.result;
  f->join.valid.store(false, std::memory_order_release);
  if (f->memory.block) block_put(f);
  return true;
}

Detached join_set_detached(FiberRecord* f, bool detached, StillNamed named) {
  Busy busy;
  SpinGuard guard(f->join.lock);
  FiberRecord* joiner = __atomic_load_n(&f->join.joiner, __ATOMIC_ACQUIRE);
  bool was = __atomic_load_n(&f->join.detached, __ATOMIC_ACQUIRE);
  bool ended = f->join.done.load(std::memory_order_acquire);
  if (!named(f) || (was && ended)) return Detached::Gone;
  if (joiner) return Detached::HasJoiner;
  if (was == detached) return Detached::Before;
  __atomic_store_n(&f->join.detached, detached, __ATOMIC_RELEASE);
  if (!ended) return Detached::Now;
  f->join.valid.store(false, std::memory_order_release);
  return Detached::Ended;
}

Ending join_end(FiberRecord* f) {
  f->join.lock.lock();
  if (!f->run.kernel) f->run.state.store(State::Done, std::memory_order_release);
  f->join.done.store(1, std::memory_order_release);
  if (!f->run.kernel) FIBERTHREAD_PROBE1("done", f);
  Ending e{f->join.joiner, f->join.detached, f->run.bound.load(std::memory_order_relaxed)};  // another thread may have bound it just now
  if (e.detached) f->join.valid.store(false, std::memory_order_release);
  f->run.bound.store(nullptr, std::memory_order_relaxed);
  f->join.lock.unlock();
  return e;
}

FiberRecord* join_choose_next(FiberRecord* me) {
  FiberRecord* joiner = __atomic_load_n(&me->join.joiner, __ATOMIC_ACQUIRE);
  if (!joiner || joiner->run.kernel || me->wait.called_by.load(std::memory_order_relaxed) || chaos(2)) return nullptr;
  State parked = State::Parked;
  return joiner->run.state.compare_exchange_strong(parked, State::Queued, std::memory_order_acq_rel) ? joiner : nullptr;
}

}  // namespace fiberthread
