// SPDX-License-Identifier: MIT
// pthread_mutex_*. A private mutex is a FiberMutex in the place of glibc's __list. __count, __owner (tid) and __kind keep their places and
// meanings. __lock holds what glibc keeps beside the lock bits: "owner died". Process-shared mutexes are libc's, since other processes may
// use them without this library. So are mutexes with priority inheritance or protection, which the kernel serves. See shim/shared_use.h.
#include "shim/mutex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/single_threaded.h>

#include <new>

#include "sched/observe/waits.h"
#include "sched/scheduler.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/shared_use.h"
#include "shim/time.h"
#include "shim/user_memory.h"
#include "fiberthread/fiber_mutex.h"

namespace fiberthread {
namespace {

struct Mutex {
  unsigned state;  // kOwnerDied or 0
  unsigned count;  // how often a recursive mutex is locked
  int owner;       // tid, 0, kInconsistent or kNotRecoverable
  unsigned users;  // waits of condition variables that will come back to the mutex (libc also counts its owner)
  std::atomic<int> kind;
  int unused;
  FiberMutex word;
  Mutex* next_held;  // robust mutexes: the next in the owner's list
};
#define SAME_PLACE(ours, glibc) static_assert(offsetof(Mutex, ours) == offsetof(pthread_mutex_t, __data.glibc))
SAME_PLACE(state, __lock);
SAME_PLACE(count, __count);
SAME_PLACE(owner, __owner);
SAME_PLACE(users, __nusers);
SAME_PLACE(kind, __kind);
SAME_PLACE(word, __list);
static_assert(sizeof(Mutex) <= sizeof(pthread_mutex_t) && alignof(Mutex) <= alignof(pthread_mutex_t));

// Bits of `kind`, with the values that static initialisers and other processes use. The remaining bits only concern lock elision.
constexpr int kType = 3, kRobust = 16, kInherit = 32, kProtect = 64, kShared = 128;
constexpr int kLibcs = kInherit | kProtect | kShared;
constexpr int kInconsistent = INT_MAX, kNotRecoverable = INT_MAX - 1;
constexpr unsigned kOwnerDied = FUTEX_OWNER_DIED;

// The robust mutexes that the thread holds, the latest first. TLS belongs to the fiber.
constinit thread_local Mutex* held_robust = nullptr;

void private_owner_died(FiberRecord* me) {
  while (Mutex* m = held_robust) {
    held_robust = m->next_held;
    if (m->owner != kInconsistent) m->owner = 0;
    m->count = 0;
    m->state |= kOwnerDied;
    m->word.unlock(me);
  }
}

Mutex& of(pthread_mutex_t* m) { return *reinterpret_cast<Mutex*>(m); }

int kind_of(const Mutex& m) { return m.kind.load(std::memory_order_relaxed); }

// Neither the word nor the tid is enough alone. The word names a record, which a new fiber may have after the owner died. The tid does not
// change atomically with the lock. Both agree only for the owner itself.
bool held_by(const Mutex& m, const FiberRecord* me) {
  return m.word.owner() == me && (m.owner == static_cast<int>(me->identity.id) || m.owner == kInconsistent);
}

// As libc, these do without locked instructions while the process has one thread. The scheduler's first thread, sysmon, is one that libc makes,
// and never ends. So libc has cleared its flag before a second fiber can run. It knows as little as on NPTL of threads made behind its back.
bool single_threaded() { return __libc_single_threaded; }

[[gnu::always_inline]] inline void take(Mutex& m, FiberRecord* me) {
  if (!single_threaded() || !m.word.try_lock_alone(me)) m.word.lock(me);
}
[[gnu::always_inline]] inline bool try_take(Mutex& m, FiberRecord* me) {
  return single_threaded() ? m.word.try_lock_alone(me) : m.word.try_lock(me);
}
[[gnu::always_inline]] inline void give_back(Mutex& m, FiberRecord* me) {
  if (!single_threaded() || !m.word.unlock_alone(me)) m.word.unlock(me);
}

// Does the bookkeeping of a new owner. Returns what the call returns.
int acquired(Mutex& m, FiberRecord* me, int kind) {
  int result = 0;
  if (kind & kRobust) {
    if (m.owner == kNotRecoverable) {
      give_back(m, me);
      return ENOTRECOVERABLE;
    }
    m.next_held = held_robust;
    held_robust = &m;
    if (m.state & kOwnerDied) {
      m.state &= ~kOwnerDied;
      result = EOWNERDEAD;
    }
  }
  m.owner = result ? kInconsistent : static_cast<int>(me->identity.id);
  if ((kind & kType) == PTHREAD_MUTEX_RECURSIVE || kind & kRobust) m.count = 1;
  return result;
}

// If `me` holds the mutex already and its type cares, returns what the call returns. Otherwise returns -1.
int owned_already(Mutex& m, const FiberRecord* me, int kind, int errorcheck) {
  if (kind < 0) return EINVAL;  // destroyed
  int type = kind & kType;
  if ((type != PTHREAD_MUTEX_RECURSIVE && type != PTHREAD_MUTEX_ERRORCHECK) || !held_by(m, me)) return -1;
  if (type == PTHREAD_MUTEX_ERRORCHECK) return errorcheck;
  if (m.count == UINT_MAX) return EAGAIN;
  m.count++;
  return 0;
}

bool is_libcs(int kind) { return kind >= 0 && kind & kLibcs; }

Use use_of(int kind) {
  if (kind & kProtect) return Use::Ceiling;
  if (kind & kInherit) return Use::KernelOwns;
  int type = kind & kType;
  return kind & kRobust || type == PTHREAD_MUTEX_RECURSIVE || type == PTHREAD_MUTEX_ERRORCHECK ? Use::Owns : Use::Waits;
}

// `wait` is libc's call that waits as long as necessary.
template <class Wait>
int lock_libcs(pthread_mutex_t* mutex, Wait wait) {
  // This does not try first. libc's trylock keeps a mutex that it reports as not recoverable.
  const Mutex& m = of(mutex);
  constexpr unsigned kBelowCeiling = (1u << 19) - 1;
  bool held = __atomic_load_n(&m.state, __ATOMIC_RELAXED) & (kind_of(m) & kProtect ? kBelowCeiling : FUTEX_TID_MASK);
  AsKernelThread as(use_of(kind_of(m)));
  Blocking blocking(held);
  return wait();
}
int lock_libcs(pthread_mutex_t* mutex) {
  return lock_libcs(mutex, [mutex] { return REAL(pthread_mutex_lock)(mutex); });
}

[[gnu::noinline]] int lock_other(pthread_mutex_t* mutex) {
  Mutex& m = of(mutex);
  int kind = kind_of(m);
  if (is_libcs(kind)) return lock_libcs(mutex);
  FiberRecord* me = self();
  if (kind == PTHREAD_MUTEX_RECURSIVE && !held_by(m, me)) {  // the most frequent of these; the lines below do the same in twice the time
    take(m, me);
    m.owner = static_cast<int>(me->identity.id);
    m.count = 1;
    return 0;
  }
  if (int e = owned_already(m, me, kind, EDEADLK); e >= 0) return e;
  take(m, me);
  return acquired(m, me, kind);
}

[[gnu::noinline]] int unlock_other(pthread_mutex_t* mutex) {
  Mutex& m = of(mutex);
  int kind = kind_of(m);
  if (is_libcs(kind)) {
    AsKernelThread as(use_of(kind));
    return REAL(pthread_mutex_unlock)(mutex);
  }
  FiberRecord* me = self();
  if (kind == PTHREAD_MUTEX_RECURSIVE && m.count == 1 && held_by(m, me)) {
    m.count = m.owner = 0;
    give_back(m, me);
    return 0;
  }
  if (int e = mutex_check_release(mutex, me)) return e;
  if ((kind & kType) == PTHREAD_MUTEX_RECURSIVE && --m.count != 0) return 0;
  if (kind & kRobust) {
    for (Mutex** p = &held_robust; *p; p = &(*p)->next_held)
      if (*p == &m) {
        *p = m.next_held;
        break;
      }
    m.owner = m.owner == kInconsistent ? kNotRecoverable : 0;
    m.count = 0;
  } else {
    m.owner = 0;
  }
  give_back(m, me);
  return 0;
}

int timed_lock(Mutex& m, clockid_t clock, const timespec* t) {
  int kind = kind_of(m);
  FiberRecord* me = self();
  if (int e = owned_already(m, me, kind, EDEADLK); e >= 0) return e;
  if (!try_take(m, me)) {
    if (!valid(*t)) return EINVAL;
    while (!m.word.try_lock_until(me, deadline_from(clock, t)))
      if (reached(clock, t)) return ETIMEDOUT;
  }
  return acquired(m, me, kind);
}

[[gnu::always_inline]] inline int lock(pthread_mutex_t* mutex) {
  Mutex& m = of(mutex);
  if (__builtin_expect(kind_of(m) != PTHREAD_MUTEX_NORMAL, 0)) return lock_other(mutex);
  FiberRecord* me = self();
  take(m, me);
  m.owner = static_cast<int>(me->identity.id);
  return 0;
}

[[gnu::always_inline]] inline int unlock(pthread_mutex_t* mutex) {
  Mutex& m = of(mutex);
  if (__builtin_expect(kind_of(m) != PTHREAD_MUTEX_NORMAL, 0)) return unlock_other(mutex);
  m.owner = 0;
  give_back(m, self());
  return 0;
}

bool is_libcs(pthread_mutex_t* m) { return is_libcs(kind_of(of(m))); }

[[gnu::noinline]] int trylock_other(pthread_mutex_t* mutex) {
  if (is_libcs(mutex)) {
    AsKernelThread as(use_of(kind_of(of(mutex))));
    return REAL(pthread_mutex_trylock)(mutex);
  }
  Mutex& m = of(mutex);
  int kind = kind_of(m);
  FiberRecord* me = self();
  // As in NPTL, a trylock does not check the owner of a plain mutex.
  if (int e = owned_already(m, me, kind, kind & kRobust ? EDEADLK : EBUSY); e >= 0) return e;
  return try_take(m, me) ? acquired(m, me, kind) : EBUSY;
}

// For reports. `r` has the word's address, and the owner at that time.
void look(ParkReason& r) {
  auto* mutex = reinterpret_cast<const Mutex*>(static_cast<const char*>(r.object) - offsetof(Mutex, word));
  alignas(Mutex) unsigned char copy[sizeof(Mutex)];
  if (fiberthread_user_copy(copy, mutex, sizeof copy) != 0) return;
  auto& m = *reinterpret_cast<const Mutex*>(copy);
  r.owner = m.word.owner();
  uint32_t id;
  if (!r.owner || !copy_user(&id, &r.owner->identity.id)) return;
  // The library's own mutexes are only a word.
  constexpr int kFirstTid = 1 << 22, kLastTid = 1 << 30;
  bool same = m.owner == static_cast<int>(id) || m.owner == kInconsistent;
  if (!same && (m.owner < kFirstTid || m.owner > kLastTid)) return;
  r.object = mutex;
  if (!same) r.owner = nullptr;  // the owner has ended, and a later fiber has its record
}
WaitLook mutex_look{"mutex", look};
[[gnu::constructor]] void set_look() { wait_look_by(mutex_look); }

}  // namespace

void private_robust_mutexes_owner_died(FiberRecord* me) { private_owner_died(me); }

void robust_mutexes_owner_died(FiberRecord* me) {
  private_owner_died(me);
  shared_robust_owner_died(me);
}

Use mutex_use(const pthread_mutex_t* mutex) { return use_of(__atomic_load_n(&mutex->__data.__kind, __ATOMIC_RELAXED)); }

int mutex_check_release(pthread_mutex_t* mutex, FiberRecord* me) {
  Mutex& m = of(mutex);
  int kind = kind_of(m);
  if (kind < 0) return EINVAL;
  int type = kind & kType;
  bool minds = type == PTHREAD_MUTEX_RECURSIVE || type == PTHREAD_MUTEX_ERRORCHECK || kind & kRobust;
  if (is_libcs(kind)) {
    uint32_t tid = owner_tid(me, use_of(kind));
    if (kind & (kRobust | kInherit)) return (__atomic_load_n(&m.state, __ATOMIC_RELAXED) & FUTEX_TID_MASK) == tid ? 0 : EPERM;
    return minds && __atomic_load_n(&m.owner, __ATOMIC_RELAXED) != static_cast<int>(tid) ? EPERM : 0;
  }
  if (minds && !held_by(m, me)) return EPERM;
  if (type == PTHREAD_MUTEX_RECURSIVE && kind & kRobust && m.owner == kInconsistent && m.count > 1) {
    m.count--;
    return ENOTRECOVERABLE;  // as NPTL, which still holds it
  }
  return 0;
}

bool mutex_is_libcs(const pthread_mutex_t* mutex) { return is_libcs(__atomic_load_n(&mutex->__data.__kind, __ATOMIC_RELAXED)); }

const void* mutex_requeue_address(pthread_mutex_t* mutex) {
  Mutex& m = of(mutex);
  int kind = kind_of(m);
  if (is_libcs(kind) || ((kind & kType) == PTHREAD_MUTEX_RECURSIVE && m.count > 1)) return nullptr;
  return &m.word;
}

bool mutex_expect_waiters(void* address) { return static_cast<FiberMutex*>(address)->expect_waiters(); }

void mutex_unlock_to_wait(pthread_mutex_t* mutex) {
  of(mutex).users++;
  unlock(mutex);
}

int mutex_relock(pthread_mutex_t* mutex, FiberRecord* me, uint64_t token) {
  Mutex& m = of(mutex);
  int kind = kind_of(m), e;
  if (is_libcs(kind)) {
    e = lock_libcs(mutex);
  } else if (token == 0) {
    e = lock(mutex);
  } else {
    m.word.relock(me, token);
    e = acquired(m, me, kind);
  }
  if (e == 0 || e == EOWNERDEAD) m.users--;
  return e;
}

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT FIBERTHREAD_STOPPABLE int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept { return lock(mutex); }
FIBERTHREAD_EXPORT FIBERTHREAD_STOPPABLE int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept { return unlock(mutex); }

FIBERTHREAD_EXPORT FIBERTHREAD_STOPPABLE int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  Mutex& m = of(mutex);
  if (__builtin_expect(kind_of(m) != PTHREAD_MUTEX_NORMAL, 0)) return trylock_other(mutex);
  FiberRecord* me = self();
  if (!try_take(m, me)) return EBUSY;
  m.owner = static_cast<int>(me->identity.id);
  return 0;
}

FIBERTHREAD_EXPORT int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* t) noexcept {
  if (is_libcs(mutex))
    return lock_libcs(mutex,
                      [=] { return in_kernel_time(CLOCK_REALTIME, t, [=](auto t) { return REAL(pthread_mutex_timedlock)(mutex, t); }); });
  return timed_lock(of(mutex), CLOCK_REALTIME, t);
}

FIBERTHREAD_EXPORT int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const timespec* t) noexcept {
  if (is_libcs(mutex)) {
    if (!is_wait_clock(clock)) return EINVAL;
    return lock_libcs(mutex,
                      [=] { return in_kernel_time(clock, t, [=](auto t) { return REAL(pthread_mutex_clocklock)(mutex, clock, t); }); });
  }
  return is_wait_clock(clock) ? timed_lock(of(mutex), clock, t) : EINVAL;
}

FIBERTHREAD_EXPORT int pthread_mutex_init(pthread_mutex_t* mutex, const pthread_mutexattr_t* attr) noexcept {
  int type = PTHREAD_MUTEX_NORMAL, protocol = PTHREAD_PRIO_NONE, robust = PTHREAD_MUTEX_STALLED;
  int shared = PTHREAD_PROCESS_PRIVATE;
  if (attr) {
    pthread_mutexattr_getpshared(attr, &shared);
    pthread_mutexattr_gettype(attr, &type);
    pthread_mutexattr_getprotocol(attr, &protocol);
    pthread_mutexattr_getrobust(attr, &robust);
    if (shared == PTHREAD_PROCESS_SHARED || protocol != PTHREAD_PRIO_NONE) return REAL(pthread_mutex_init)(mutex, attr);
  }
  memset(mutex, 0, sizeof *mutex);
  Mutex& m = of(mutex);
  int kind = type;
  if (robust == PTHREAD_MUTEX_ROBUST) kind |= kRobust;
  m.kind.store(kind, std::memory_order_relaxed);
  return 0;
}

FIBERTHREAD_EXPORT int pthread_mutex_destroy(pthread_mutex_t* mutex) noexcept {
  if (is_libcs(mutex)) return REAL(pthread_mutex_destroy)(mutex);
  Mutex& m = of(mutex);
  if (!(kind_of(m) & kRobust) && (m.word.owner() || __atomic_load_n(&m.users, __ATOMIC_RELAXED))) return EBUSY;
  m.kind.store(-1, std::memory_order_relaxed);
  return 0;
}

FIBERTHREAD_EXPORT int pthread_mutex_consistent(pthread_mutex_t* mutex) noexcept {
  if (is_libcs(mutex)) {
    AsKernelThread as(use_of(kind_of(of(mutex))));  // libc's function stores the owner
    return REAL(pthread_mutex_consistent)(mutex);
  }
  // As NPTL, which does not ask who holds it.
  Mutex& m = of(mutex);
  if (!(kind_of(m) & kRobust) || m.owner != kInconsistent) return EINVAL;
  FiberRecord* owner = m.word.owner();
  m.owner = static_cast<int>((owner ? owner : self())->identity.id);
  return 0;
}

FIBERTHREAD_EXPORT int pthread_mutex_getprioceiling(const pthread_mutex_t* mutex, int* ceiling) noexcept {
  if (!is_libcs(const_cast<pthread_mutex_t*>(mutex))) return EINVAL;
  return REAL(pthread_mutex_getprioceiling)(mutex, ceiling);
}

FIBERTHREAD_EXPORT int pthread_mutex_setprioceiling(pthread_mutex_t* mutex, int ceiling, int* old) noexcept {
  if (!is_libcs(mutex)) return EINVAL;
  AsKernelThread as(use_of(kind_of(of(mutex))));
  Blocking blocking;
  return REAL(pthread_mutex_setprioceiling)(mutex, ceiling, old);
}

FIBERTHREAD_ALIAS(__pthread_mutex_lock, pthread_mutex_lock);
FIBERTHREAD_ALIAS(__pthread_mutex_unlock, pthread_mutex_unlock);
FIBERTHREAD_ALIAS(__pthread_mutex_trylock, pthread_mutex_trylock);
FIBERTHREAD_ALIAS(__pthread_mutex_init, pthread_mutex_init);
FIBERTHREAD_ALIAS(__pthread_mutex_destroy, pthread_mutex_destroy);
FIBERTHREAD_ALIAS(pthread_mutex_consistent_np, pthread_mutex_consistent);
