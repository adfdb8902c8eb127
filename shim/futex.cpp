// SPDX-License-Identifier: MIT
// Futexes of fibers: plain ones, and those of locks whose word names its owner.
#include "shim/futex.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>

#include "sched/scheduler.h"
#include "shim/blocking.h"
#include "shim/signal.h"
#include "shim/syscall_parts.h"
#include "shim/thread_names.h"
#include "shim/time.h"
#include "shim/user_memory.h"
#include "sync/parking_lot.h"

namespace fiberthread {
namespace {

enum class Timeout { Relative, Absolute };
enum class IfOwned { Waits, Fails };

// A waiter's tag is its bit set, or 0 if it waits for a lock with an owner.

long futex_wait_here(uint32_t* word, uint32_t expected, clockid_t clock, const timespec* user_t, Timeout kind, uint32_t bits) {
  bool relative = kind == Timeout::Relative;
  timespec copy;
  if (user_t && !copy_user(&copy, user_t)) return -EFAULT;
  const timespec* t = user_t ? &copy : nullptr;
  if (t && (!valid(*t) || t->tv_sec < 0)) return -EINVAL;
  FiberRecord* me = self();
  uint64_t deadline = t && relative ? deadline_in(*t) : deadline_from(clock, t);
  for (;;) {
    Waiter w;
    w.tag = bits;
    uint32_t now;
    bool there = true;
    HandlersBefore handlers;
    auto still = [&] { return (there = fiberthread_user_load(word, &now) == 0) && now == expected; };
    WakeReason r = park(word, w, still, {"futex", word}, deadline, kInterruptSafePoint);
    if (!there) return -EFAULT;
    if (r == WakeReason::Woken) return 0;
    if (r == WakeReason::Invalid) return -EAGAIN;
    if (r == WakeReason::Interrupted && !handlers.none_since() && (t || !signal_restarts(me))) return -EINTR;
    if (r == WakeReason::TimedOut) {
      if (relative || reached(clock, t)) return -ETIMEDOUT;
      deadline = deadline_from(clock, t);
    }
  }
}

long futex_wake_here(const uint32_t* word, int n, uint32_t bits) {
  WakeList list;
  {
    LockedQueue q(word);
    for (Waiter* w = q.first(); w && static_cast<int>(list.size()) < n;) {
      Waiter* next = w->next;
      if (w->tag & bits) list.add(q, *w);
      w = next;
    }
  }
  list.wake_all();
  return static_cast<long>(list.size());
}

// Locks whose word names their owner. The kernel could not find a fiber by its tid. Among the threads of this process such a lock is ours.
// Its waiters get it in the order in which they came, without priority inheritance. They have tag 0.

bool lives(uint32_t tid) {
  FiberRecord* f = fiber_of_tid(static_cast<int>(tid));
  if (f) return !f->join.done.load(std::memory_order_acquire);
  return raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), tid, 0) == 0;
}

long pi_lock(uint32_t* word, clockid_t clock, const timespec* user_t, IfOwned then) {
  timespec copy;
  if (user_t && !copy_user(&copy, user_t)) return -EFAULT;
  const timespec* t = user_t ? &copy : nullptr;
  if (t && (!valid(*t) || t->tv_sec < 0)) return -EINVAL;
  FiberRecord* me = self();
  constexpr uint64_t kLook = 100'000'000;  // ns: an owner without a robust list ends without telling us
  bool waited = false;
  for (;;) {
    uint32_t now;
    if (fiberthread_user_load(word, &now) != 0) return -EFAULT;
    uint32_t owner = now & FUTEX_TID_MASK;
    if (owner == me->identity.id) return -EDEADLK;
    uint32_t wanted = owner ? now | FUTEX_WAITERS : now | me->identity.id;  // the other bits stay: "owner died" and "waiters"
    long changed = fiberthread_user_exchange(word, &now, wanted);
    if (changed < 0) return changed;
    if (changed == 1) continue;
    if (owner == 0) return 0;
    uint32_t expected = wanted;
    if (!lives(owner)) {  // or it gave the lock up before it ended
      if (fiberthread_user_load(word, &now) == 0 && now != expected) continue;
      if (!waited) return -ESRCH;
      // A thread that has waited until the owner ended gets the lock.
      if (fiberthread_user_exchange(word, &now, me->identity.id | FUTEX_OWNER_DIED | FUTEX_WAITERS) == 0) return 0;
      continue;
    }
    if (then == IfOwned::Fails) return -EAGAIN;
    Waiter w;
    auto still = [&] { return fiberthread_user_load(word, &now) == 0 && now == expected; };
    uint64_t look = deadline_in(kLook), deadline = deadline_from(clock, t);
    WakeReason r = park(word, w, still, {"futex (PI)", word}, deadline < look ? deadline : look);
    if (r == WakeReason::Woken && w.token) return 0;  // handed over
    if (r == WakeReason::TimedOut && t && reached(clock, t)) return -ETIMEDOUT;
    waited |= r != WakeReason::Invalid;
  }
}

long pi_unlock(uint32_t* word) {
  FiberRecord* me = self();
  uint32_t now;
  if (fiberthread_user_load(word, &now) != 0) return -EFAULT;
  if ((now & FUTEX_TID_MASK) != me->identity.id) return -EPERM;
  WakeList list;
  {
    LockedQueue q(word);
    Waiter *first = nullptr, *second = nullptr;
    for (Waiter* w = q.first(); w && !second; w = w->next)
      if (!w->tag) (first ? second : first) = w;
    // A thread that has set the bit meanwhile looks at the word again before it waits.
    uint32_t next = first ? first->fiber->identity.id | (second ? FUTEX_WAITERS : 0) : 0;
    long changed;
    do changed = fiberthread_user_exchange(word, &now, next);
    while (changed == 1);
    if (changed < 0) return changed;
    if (first) {
      first->token = 1;
      list.add(q, *first);
    }
  }
  list.wake_all();
  return 0;
}

}  // namespace

void pi_owner_died(const uint32_t* word) {
  WakeList list;
  {
    LockedQueue q(word);
    Waiter* w = q.first();
    while (w && w->tag) w = w->next;
    if (w) list.add(q, *w);
  }
  list.wake_all();
}

long futex_call(uint32_t* word, int op, uint32_t value, long fourth, uint32_t* word2, uint32_t value3) {
  constexpr uint32_t kAll = FUTEX_BITSET_MATCH_ANY;
  int command = op & FUTEX_CMD_MASK;
  bool aligned = reinterpret_cast<uintptr_t>(word) % sizeof *word == 0;
  auto kernel = [&] {
    auto call = [&] {
      timespec t;
      bool timed = command == FUTEX_WAIT && fourth && copy_user(&t, reinterpret_cast<const timespec*>(fourth)) && valid(t) && t.tv_sec >= 0;
      uint64_t deadline = timed ? deadline_in(t) : kNever;  // the other calls have absolute deadlines, or none
      for (long time = fourth;;) {
        HandlersBefore handlers;
        long r = plain_call(SYS_futex, arg(word), op, static_cast<long>(value), time, arg(word2), static_cast<long>(value3));
        if (r != -EINTR || !handlers.none_since()) return r;
        if (deadline == kNever) continue;
        t = time_until(deadline);
        time = arg(&t);
      }
    };
    uint32_t now;
    bool waits = (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET) && has_slot_to_give() && aligned &&
                 fiberthread_user_load(word, &now) == 0 && now == value;
    if (!waits) return call();
    Blocking blocking;
    return call();
  };
  if (!(op & FUTEX_PRIVATE_FLAG) || !aligned || reinterpret_cast<uintptr_t>(word) < 4096) return kernel();
  auto* t = reinterpret_cast<const timespec*>(fourth);
  bool real_time = op & FUTEX_CLOCK_REALTIME;
  uint32_t bits = command == FUTEX_WAIT_BITSET || command == FUTEX_WAKE_BITSET ? value3 : kAll;
  if (bits == 0) return -EINVAL;
  constexpr int kLockPi2 = 13;
  if (real_time && command != FUTEX_WAIT_BITSET && command != kLockPi2) return kernel();  // the kernel has no such call
  // Kernel threads may wait by system calls that we do not see.
  auto wake_more = [&](long woken) {
    if (woken >= static_cast<int>(value)) return woken;
    long more = raw_syscall(SYS_futex, arg(word), op, static_cast<int>(value) - woken, 0, 0, static_cast<long>(value3));
    return more < 0 ? (woken ? woken : more) : woken + more;
  };
  switch (command) {
    case FUTEX_WAIT: return futex_wait_here(word, value, CLOCK_MONOTONIC, t, Timeout::Relative, bits);
    case FUTEX_WAIT_BITSET: return futex_wait_here(word, value, real_time ? CLOCK_REALTIME : CLOCK_MONOTONIC, t, Timeout::Absolute, bits);
    case FUTEX_WAKE:
    case FUTEX_WAKE_BITSET: return wake_more(futex_wake_here(word, static_cast<int>(value) < 1 ? 1 : static_cast<int>(value), bits));
    case FUTEX_CMP_REQUEUE:
    case FUTEX_REQUEUE: {
      if (static_cast<int>(value) < 0 || static_cast<int>(fourth) < 0 || reinterpret_cast<uintptr_t>(word2) % sizeof *word2) return -EINVAL;
      uint32_t now;
      if (command == FUTEX_CMP_REQUEUE) {
        if (fiberthread_user_load(word, &now) != 0) return -EFAULT;
        if (now != value3) return -EAGAIN;
      }
      // The waiters that should move are woken instead. Users of a futex must expect spurious wake-ups anyway.
      long n = static_cast<long>(value) + static_cast<int>(fourth);
      return futex_wake_here(word, n > 0x7fffffff ? 0x7fffffff : static_cast<int>(n), kAll);
    }
    case FUTEX_WAKE_OP: {
      long r = kernel();
      if (r < 0) return r;
      return r + futex_wake_here(word, static_cast<int>(value), kAll) + futex_wake_here(word2, static_cast<int>(fourth), kAll);
    }
    case FUTEX_LOCK_PI: return pi_lock(word, CLOCK_REALTIME, t, IfOwned::Waits);
    case kLockPi2: return pi_lock(word, real_time ? CLOCK_REALTIME : CLOCK_MONOTONIC, t, IfOwned::Waits);
    case FUTEX_TRYLOCK_PI: return pi_lock(word, CLOCK_REALTIME, nullptr, IfOwned::Fails);
    case FUTEX_UNLOCK_PI: return pi_unlock(word);
    default: return kernel();
  }
}

}  // namespace fiberthread
