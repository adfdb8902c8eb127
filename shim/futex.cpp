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

// A waiter's tag is its bit set, or 0 if it waits for a lock with an owner. If it first waits to be sent to that lock, requeue_to is the lock.
bool wants_lock(const Waiter& w) { return !w.tag && !w.requeue_to; }

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

// The kernel refuses to wake or move, as others, a waiter for a lock with an owner. It has woken those before it by then, and so have we.
long futex_wake_here(const uint32_t* word, int n, uint32_t bits) {
  WakeList list;
  bool owned = false;
  {
    LockedQueue q(word);
    for (Waiter* w = q.first(); w && static_cast<int>(list.size()) < n;) {
      if ((owned = !w->tag)) break;
      Waiter* next = w->next;
      if (w->tag & bits) list.add(q, *w);
      w = next;
    }
  }
  list.wake_all();
  return owned ? -EINVAL : static_cast<long>(list.size());
}

constexpr uint32_t kAll = FUTEX_BITSET_MATCH_ANY;

// Kernel threads may wait by system calls that we do not see.
long futex_wake_all_kinds(const uint32_t* word, int n, uint32_t bits) {
  if (n < 1) n = 1;  // as the kernel does
  long woken = futex_wake_here(word, n, bits);
  if (woken < 0 || woken >= n) return woken;
  long more = raw_syscall(SYS_futex, arg(word), FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG, n - woken, 0, 0, static_cast<long>(bits));
  return more < 0 ? (woken ? woken : more) : woken + more;
}

// Wakes the first `wakes` waiters of `from` and moves up to `moves` others to `to`. Returns how many these are. With `expected`, `from` must
// have that value.
long futex_requeue_here(const uint32_t* from, const uint32_t* to, int wakes, int moves, const uint32_t* expected) {
  WakeList list;
  long n = 0;
  bool owned = false;
  {
    LockedQueues q(from, to);
    uint32_t now;
    if (expected && fiberthread_user_load(from, &now) != 0) return -EFAULT;
    if (expected && now != *expected) return -EAGAIN;
    for (Waiter* w = q.first(); w && n < static_cast<long>(wakes) + moves;) {
      if ((owned = !w->tag)) break;
      Waiter* next = w->next;
      if (n++ < wakes) list.add(q, *w);
      else if (from != to) q.move(*w);
      w = next;
    }
  }
  list.wake_all();
  return owned ? -EINVAL : n;
}

// Changes `word2` as `code` says, and wakes waiters of `word`, and those of `word2` if that had the value that `code` asks for.
long futex_wake_op(const uint32_t* word, uint32_t* word2, int n, int n2, uint32_t code) {
  auto sign_extended = [](uint32_t bits12) { return static_cast<uint32_t>(static_cast<int32_t>(bits12 << 20) >> 20); };
  uint32_t operand = sign_extended(code >> 12 & 0xfff), wanted = sign_extended(code & 0xfff);
  if (code >> 28 & FUTEX_OP_OPARG_SHIFT) operand = 1u << (operand & 31);
  uint32_t old, next;
  if (fiberthread_user_load(word2, &old) != 0) return -EFAULT;
  for (long changed = 1; changed != 0;) {
    switch (code >> 28 & 7) {
      case FUTEX_OP_SET: next = operand; break;
      case FUTEX_OP_ADD: next = old + operand; break;
      case FUTEX_OP_OR: next = old | operand; break;
      case FUTEX_OP_ANDN: next = old & ~operand; break;
      case FUTEX_OP_XOR: next = old ^ operand; break;
      default: return -ENOSYS;
    }
    changed = fiberthread_user_exchange(word2, &old, next);
    if (changed < 0) return changed;
  }
  bool second;
  auto a = static_cast<int32_t>(old), b = static_cast<int32_t>(wanted);
  switch (code >> 24 & 0xf) {
    case FUTEX_OP_CMP_EQ: second = a == b; break;
    case FUTEX_OP_CMP_NE: second = a != b; break;
    case FUTEX_OP_CMP_LT: second = a < b; break;
    case FUTEX_OP_CMP_LE: second = a <= b; break;
    case FUTEX_OP_CMP_GT: second = a > b; break;
    case FUTEX_OP_CMP_GE: second = a >= b; break;
    default: return -ENOSYS;
  }
  long r = futex_wake_all_kinds(word, n, kAll);
  if (r < 0 || !second) return r;
  long r2 = futex_wake_all_kinds(word2, n2, kAll);
  return r2 < 0 ? r2 : r + r2;
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
      if (wants_lock(*w)) (first ? second : first) = w;
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

// Waits until pi_requeue() sends it to `lock`, and then for that.
long pi_wait_requeue(uint32_t* word, uint32_t expected, uint32_t* lock, clockid_t clock, const timespec* user_t) {
  timespec copy;
  if (user_t && !copy_user(&copy, user_t)) return -EFAULT;
  const timespec* t = user_t ? &copy : nullptr;
  if (t && (!valid(*t) || t->tv_sec < 0)) return -EINVAL;
  for (;;) {
    Waiter w;
    w.requeue_to = lock;
    uint32_t now;
    bool there = true;
    auto still = [&] { return (there = fiberthread_user_load(word, &now) == 0) && now == expected; };
    // After a handler the kernel goes on as well.
    WakeReason r = park(word, w, still, {"futex (PI)", word}, deadline_from(clock, t), kInterruptSafePoint);
    if (!there) return -EFAULT;
    if (r == WakeReason::Woken) return pi_lock(lock, clock, user_t, IfOwned::Waits);
    if (r == WakeReason::Invalid) return -EAGAIN;
    if (r == WakeReason::TimedOut && t && reached(clock, t)) return -ETIMEDOUT;
  }
}

// The waiters wake and queue up for the lock themselves, since the lock may get free, or its owner end, without a word to us.
long pi_requeue(const uint32_t* word, const uint32_t* lock, int moves, uint32_t expected) {
  WakeList list;
  bool others = false;
  {
    LockedQueue q(word);
    uint32_t now;
    if (fiberthread_user_load(word, &now) != 0) return -EFAULT;
    if (now != expected) return -EAGAIN;
    while (Waiter* w = q.first()) {
      if ((others = w->requeue_to != lock) || static_cast<long>(list.size()) > moves) break;
      list.add(q, *w);
    }
  }
  list.wake_all();
  return others ? -EINVAL : static_cast<long>(list.size());
}

}  // namespace

void pi_owner_died(const uint32_t* word) {
  WakeList list;
  {
    LockedQueue q(word);
    Waiter* w = q.first();
    while (w && !wants_lock(*w)) w = w->next;
    if (w) list.add(q, *w);
  }
  list.wake_all();
}

long futex_call(uint32_t* word, int op, uint32_t value, long fourth, uint32_t* word2, uint32_t value3) {
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
  bool may_be_real_time = command == FUTEX_WAIT_BITSET || command == kLockPi2 || command == FUTEX_WAIT_REQUEUE_PI;
  if (real_time && !may_be_real_time) return kernel();  // which has no such call
  bool of_two = command == FUTEX_REQUEUE || command == FUTEX_CMP_REQUEUE || command == FUTEX_WAKE_OP || command == FUTEX_WAIT_REQUEUE_PI ||
                command == FUTEX_CMP_REQUEUE_PI;
  if (of_two && reinterpret_cast<uintptr_t>(word2) % sizeof *word2) return -EINVAL;
  auto first_n = static_cast<int>(value), second_n = static_cast<int>(fourth);
  switch (command) {
    case FUTEX_WAIT: return futex_wait_here(word, value, CLOCK_MONOTONIC, t, Timeout::Relative, bits);
    case FUTEX_WAIT_BITSET: return futex_wait_here(word, value, real_time ? CLOCK_REALTIME : CLOCK_MONOTONIC, t, Timeout::Absolute, bits);
    case FUTEX_WAKE:
    case FUTEX_WAKE_BITSET: return futex_wake_all_kinds(word, first_n, bits);
    case FUTEX_CMP_REQUEUE:
    case FUTEX_REQUEUE: {
      if (first_n < 0 || second_n < 0) return -EINVAL;
      long n = futex_requeue_here(word, word2, first_n, second_n, command == FUTEX_CMP_REQUEUE ? &value3 : nullptr);
      if (n < 0 || n >= static_cast<long>(first_n) + second_n) return n;
      int woken = n < first_n ? static_cast<int>(n) : first_n;
      // The kernel may find another value by now: then there is nothing more to do.
      long more = raw_syscall(SYS_futex, arg(word), op, first_n - woken, second_n - (n - woken), arg(word2), static_cast<long>(value3));
      return more < 0 ? (n ? n : more) : n + more;
    }
    case FUTEX_WAKE_OP: return futex_wake_op(word, word2, first_n, second_n, value3);
    case FUTEX_WAIT_REQUEUE_PI:
      if (word == word2) return -EINVAL;
      return pi_wait_requeue(word, value, word2, real_time ? CLOCK_REALTIME : CLOCK_MONOTONIC, t);
    case FUTEX_CMP_REQUEUE_PI:
      if (first_n != 1 || second_n < 0 || word == word2) return -EINVAL;
      return pi_requeue(word, word2, second_n, value3);
    case FUTEX_LOCK_PI: return pi_lock(word, CLOCK_REALTIME, t, IfOwned::Waits);
    case kLockPi2: return pi_lock(word, real_time ? CLOCK_REALTIME : CLOCK_MONOTONIC, t, IfOwned::Waits);
    case FUTEX_TRYLOCK_PI: return pi_lock(word, CLOCK_REALTIME, nullptr, IfOwned::Fails);
    case FUTEX_UNLOCK_PI: return pi_unlock(word);
    default: return kernel();
  }
}

namespace {

constexpr uint32_t kWordOfProcess = 0x82;  // FUTEX2_SIZE_U32 | FUTEX2_PRIVATE
constexpr uint64_t kWord = 0xffffffff;

struct FutexOfList {  // the kernel's futex_waitv
  uint64_t value, word;
  uint32_t flags, reserved;
};

}  // namespace

// The kernel comes first in these. So it checks the arguments, and says if it has no such call.

long futex2_wake(uint32_t* word, uint64_t bits, int n, uint32_t flags) {
  long r = raw_syscall(kFutexWake, arg(word), static_cast<long>(bits), n, flags);
  if (r < 0 || r >= n || flags != kWordOfProcess) return r;
  long more = futex_wake_here(word, static_cast<int>(n - r), static_cast<uint32_t>(bits));
  return more < 0 ? more : r + more;
}

long futex2_wait(uint32_t* word, uint64_t expected, uint64_t bits, uint32_t flags, const timespec* t, clockid_t clock) {
  bool ours = flags == kWordOfProcess && expected <= kWord && bits <= kWord &&
              (!t || clock == CLOCK_MONOTONIC || clock == CLOCK_REALTIME) && reinterpret_cast<uintptr_t>(word) >= 4096;
  if (ours) {
    long checked = raw_syscall(kFutexWake, arg(word), static_cast<long>(bits), 0, flags);
    if (checked != 0) return checked;
    return futex_wait_here(word, static_cast<uint32_t>(expected), clock, t, Timeout::Absolute, static_cast<uint32_t>(bits));
  }
  return plain_call(kFutexWait, arg(word), static_cast<long>(expected), static_cast<long>(bits), flags, arg(t), clock);
}

long futex2_requeue(const void* user_two, uint32_t flags, int wakes, int moves) {
  long r = raw_syscall(kFutexRequeue, arg(user_two), flags, wakes, moves);
  FutexOfList two[2];
  if (r < 0 || !copy_user(&two, static_cast<const FutexOfList(*)[2]>(user_two))) return r;
  if (two[0].flags != kWordOfProcess || two[1].flags != kWordOfProcess) return r;
  int woken = r < wakes ? static_cast<int>(r) : wakes;
  auto expected = static_cast<uint32_t>(two[0].value);
  long n = futex_requeue_here(reinterpret_cast<uint32_t*>(two[0].word), reinterpret_cast<uint32_t*>(two[1].word), wakes - woken,
                              moves - static_cast<int>(r - woken), &expected);
  return n < 0 ? (r ? r : n) : r + n;
}

}  // namespace fiberthread
