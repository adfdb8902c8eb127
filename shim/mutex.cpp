// pthread_mutex_*. A private mutex is a FiberMutex over __list of glibc's object; __count, __owner (tid) and __kind keep their
// places and meanings. __lock holds what glibc keeps beside the lock bits: the priority ceiling and "owner died".
// Process-shared mutexes are libc's: their users may be processes without this library.
#include "shim/mutex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>

#include <new>

#include "sched/deadlock.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/time.h"
#include "shim/user_memory.h"
#include "sync/fiber_mutex.h"

namespace fiberthread {
namespace {

struct Mutex {
  unsigned state;  // kOwnerDied, ceiling << kCeilingShift
  unsigned count;  // of a recursive mutex: times locked
  int owner;       // tid, 0, kInconsistent or kNotRecoverable
  unsigned users;  // unused
  std::atomic<int> kind;
  int unused;
  FiberMutex word;
  Mutex* next_held;  // robust: the list of its owner
};
#define SAME_PLACE(ours, glibc) static_assert(offsetof(Mutex, ours) == offsetof(pthread_mutex_t, __data.glibc))
SAME_PLACE(state, __lock);
SAME_PLACE(count, __count);
SAME_PLACE(owner, __owner);
SAME_PLACE(kind, __kind);
SAME_PLACE(word, __list);
static_assert(sizeof(Mutex) <= sizeof(pthread_mutex_t) && alignof(Mutex) <= alignof(pthread_mutex_t));

// Bits of kind, as static initialisers and other processes have them. The rest only concerns lock elision.
constexpr int kType = 3, kRobust = 16, kInherit = 32, kProtect = 64, kShared = 128;
constexpr int kInconsistent = INT_MAX, kNotRecoverable = INT_MAX - 1;
constexpr unsigned kOwnerDied = FUTEX_OWNER_DIED, kCeilingShift = 19;

// Robust mutexes that the thread holds, last one first. TLS is the fiber's own.
constinit thread_local Mutex* held_robust = nullptr;

Mutex& of(pthread_mutex_t* m) { return *reinterpret_cast<Mutex*>(m); }

int kind_of(const Mutex& m) { return m.kind.load(std::memory_order_relaxed); }

// The word alone would take a dead owner's record, re-used by a new fiber, for that fiber; the tid alone is not atomic with
// the lock. Both can only agree for the owner itself.
bool held_by(const Mutex& m, const Fiber* me) {
  return m.word.owner() == me && (m.owner == static_cast<int>(me->id) || m.owner == kInconsistent);
}

// The bookkeeping of a new owner.
int acquired(Mutex& m, Fiber* me, int kind) {
  int result = 0;
  if (kind & kRobust) {
    if (m.owner == kNotRecoverable) {
      m.word.unlock(me);
      return ENOTRECOVERABLE;
    }
    m.next_held = held_robust;
    held_robust = &m;
    if (m.state & kOwnerDied) {
      m.state &= ~kOwnerDied;
      result = EOWNERDEAD;
    }
  }
  m.owner = result ? kInconsistent : static_cast<int>(me->id);
  if ((kind & kType) == PTHREAD_MUTEX_RECURSIVE) m.count = 1;
  return result;
}

// If `me` holds it already and that matters: what the call returns, else -1.
int owned_already(Mutex& m, const Fiber* me, int kind, int errorcheck) {
  if (kind < 0) return EINVAL;  // destroyed
  int type = kind & kType;
  if ((type != PTHREAD_MUTEX_RECURSIVE && type != PTHREAD_MUTEX_ERRORCHECK) || !held_by(m, me)) return -1;
  if (type == PTHREAD_MUTEX_ERRORCHECK) return errorcheck;
  if (m.count == UINT_MAX) return EAGAIN;
  m.count++;
  return 0;
}

[[gnu::noinline]] int lock_other(pthread_mutex_t* mutex) {
  Mutex& m = of(mutex);
  int kind = kind_of(m);
  if (kind >= 0 && kind & kShared) return REAL(pthread_mutex_lock)(mutex);
  Fiber* me = self();
  if (int e = owned_already(m, me, kind, EDEADLK); e >= 0) return e;
  m.word.lock(me);
  return acquired(m, me, kind);
}

[[gnu::noinline]] int unlock_other(pthread_mutex_t* mutex) {
  Mutex& m = of(mutex);
  int kind = kind_of(m);
  if (kind >= 0 && kind & kShared) return REAL(pthread_mutex_unlock)(mutex);
  Fiber* me = self();
  if (int e = mutex_check_release(mutex, me)) return e;
  if ((kind & kType) == PTHREAD_MUTEX_RECURSIVE && --m.count != 0) return 0;
  if (kind & kRobust) {
    for (Mutex** p = &held_robust; *p; p = &(*p)->next_held)
      if (*p == &m) {
        *p = m.next_held;
        break;
      }
    m.owner = m.owner == kInconsistent ? kNotRecoverable : 0;
  } else {
    m.owner = 0;
  }
  m.word.unlock(me);
  return 0;
}

int timed_lock(Mutex& m, clockid_t clock, const timespec* t) {
  int kind = kind_of(m);
  Fiber* me = self();
  if (int e = owned_already(m, me, kind, EDEADLK); e >= 0) return e;
  if (!m.word.try_lock(me)) {
    if (!valid(*t)) return EINVAL;
    while (!m.word.lock_until(me, deadline_from(clock, t)))
      if (reached(clock, t)) return ETIMEDOUT;
  }
  return acquired(m, me, kind);
}

[[gnu::always_inline]] inline int lock(pthread_mutex_t* mutex) {
  Mutex& m = of(mutex);
  if (__builtin_expect(kind_of(m) != PTHREAD_MUTEX_NORMAL, 0)) return lock_other(mutex);
  Fiber* me = self();
  m.word.lock(me);
  m.owner = static_cast<int>(me->id);
  return 0;
}

[[gnu::always_inline]] inline int unlock(pthread_mutex_t* mutex) {
  Mutex& m = of(mutex);
  if (__builtin_expect(kind_of(m) != PTHREAD_MUTEX_NORMAL, 0)) return unlock_other(mutex);
  m.owner = 0;
  m.word.unlock(self());
  return 0;
}

bool is_shared(pthread_mutex_t* m) {
  int kind = kind_of(of(m));
  return kind >= 0 && kind & kShared;
}

// For reports: the reason has the word's address, and the owner at the time.
void look(ParkReason& r) {
  auto* mutex = reinterpret_cast<const Mutex*>(static_cast<const char*>(r.object) - offsetof(Mutex, word));
  alignas(Mutex) unsigned char copy[sizeof(Mutex)];
  if (fiberthread_user_copy(copy, mutex, sizeof copy) != 0) return;
  auto& m = *reinterpret_cast<const Mutex*>(copy);
  r.owner = m.word.owner();
  uint32_t id;
  if (!r.owner || !copy_user(&id, &r.owner->id)) return;
  // The library has mutexes that are but a word.
  constexpr int kFirstTid = 1 << 22, kLastTid = 1 << 30;
  bool same = m.owner == static_cast<int>(id) || m.owner == kInconsistent;
  if (!same && (m.owner < kFirstTid || m.owner > kLastTid)) return;
  r.object = mutex;
  if (!same) r.owner = nullptr;  // its owner has ended, and the record is somebody else's
}
WaitLook mutex_look{"mutex", look};
[[gnu::constructor]] void register_look() { deadlock_look_by(mutex_look); }

}  // namespace

void robust_mutexes_owner_died(Fiber* me) {
  while (Mutex* m = held_robust) {
    held_robust = m->next_held;
    m->owner = 0;
    m->count = 0;
    m->state |= kOwnerDied;
    m->word.unlock(me);
  }
}

int mutex_check_release(pthread_mutex_t* mutex, Fiber* me) {
  Mutex& m = of(mutex);
  int kind = kind_of(m);
  if (kind < 0) return EINVAL;
  if (kind & kShared) return 0;
  int type = kind & kType;
  bool minds = type == PTHREAD_MUTEX_RECURSIVE || type == PTHREAD_MUTEX_ERRORCHECK || kind & kRobust;
  return minds && !held_by(m, me) ? EPERM : 0;
}

const void* mutex_requeue_address(pthread_mutex_t* mutex) {
  Mutex& m = of(mutex);
  int kind = kind_of(m);
  if (kind & kShared || ((kind & kType) == PTHREAD_MUTEX_RECURSIVE && m.count > 1)) return nullptr;
  return &m.word;
}

bool mutex_expect_waiters(void* address) { return static_cast<FiberMutex*>(address)->expect_waiters(); }

int mutex_unlock(pthread_mutex_t* mutex) { return unlock(mutex); }

int mutex_relock(pthread_mutex_t* mutex, Fiber* me, uint64_t token) {
  Mutex& m = of(mutex);
  int kind = kind_of(m);
  if (kind >= 0 && kind & kShared) return REAL(pthread_mutex_lock)(mutex);
  if (token == 0) return lock(mutex);
  m.word.relock(me, token);
  return acquired(m, me, kind);
}

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept { return lock(mutex); }
FIBERTHREAD_EXPORT int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept { return unlock(mutex); }

FIBERTHREAD_EXPORT int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  if (is_shared(mutex)) return REAL(pthread_mutex_trylock)(mutex);
  Mutex& m = of(mutex);
  int kind = kind_of(m);
  Fiber* me = self();
  // As NPTL, where only the plain kind takes no look at the owner.
  if (int e = owned_already(m, me, kind, kind & (kRobust | kInherit) ? EDEADLK : EBUSY); e >= 0) return e;
  return m.word.try_lock(me) ? acquired(m, me, kind) : EBUSY;
}

FIBERTHREAD_EXPORT int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* t) noexcept {
  if (is_shared(mutex)) return REAL(pthread_mutex_timedlock)(mutex, t);
  return timed_lock(of(mutex), CLOCK_REALTIME, t);
}

FIBERTHREAD_EXPORT int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const timespec* t) noexcept {
  if (is_shared(mutex)) return REAL(pthread_mutex_clocklock)(mutex, clock, t);
  return is_wait_clock(clock) ? timed_lock(of(mutex), clock, t) : EINVAL;
}

FIBERTHREAD_EXPORT int pthread_mutex_init(pthread_mutex_t* mutex, const pthread_mutexattr_t* attr) noexcept {
  int type = PTHREAD_MUTEX_NORMAL, protocol = PTHREAD_PRIO_NONE, robust = PTHREAD_MUTEX_STALLED;
  int shared = PTHREAD_PROCESS_PRIVATE, ceiling = 0;
  if (attr) {
    pthread_mutexattr_getpshared(attr, &shared);
    pthread_mutexattr_gettype(attr, &type);
    pthread_mutexattr_getprotocol(attr, &protocol);
    pthread_mutexattr_getrobust(attr, &robust);
    if (shared == PTHREAD_PROCESS_SHARED) {
      if (protocol != PTHREAD_PRIO_INHERIT) return REAL(pthread_mutex_init)(mutex, attr);
      // With inheritance the kernel wants the owner to be one of its threads, all the time. Without, all else holds, for
      // processes without this library too: the object says what it is.
      pthread_mutexattr_t plain = *attr;
      pthread_mutexattr_setprotocol(&plain, PTHREAD_PRIO_NONE);
      return REAL(pthread_mutex_init)(mutex, &plain);
    }
    if (protocol == PTHREAD_PRIO_PROTECT) {
      pthread_mutexattr_getprioceiling(attr, &ceiling);
      int low = sched_get_priority_min(SCHED_FIFO);
      if (ceiling < low) ceiling = low;
    }
  }
  memset(mutex, 0, sizeof *mutex);
  Mutex& m = of(mutex);
  int kind = type;
  if (robust == PTHREAD_MUTEX_ROBUST) kind |= kRobust;
  if (protocol == PTHREAD_PRIO_INHERIT) kind |= kInherit;
  if (protocol == PTHREAD_PRIO_PROTECT) kind |= kProtect;
  m.kind.store(kind, std::memory_order_relaxed);
  m.state = static_cast<unsigned>(ceiling) << kCeilingShift;
  return 0;
}

FIBERTHREAD_EXPORT int pthread_mutex_destroy(pthread_mutex_t* mutex) noexcept {
  if (is_shared(mutex)) return REAL(pthread_mutex_destroy)(mutex);
  Mutex& m = of(mutex);
  if (!(kind_of(m) & kRobust) && m.word.owner()) return EBUSY;
  m.kind.store(-1, std::memory_order_relaxed);
  return 0;
}

FIBERTHREAD_EXPORT int pthread_mutex_consistent(pthread_mutex_t* mutex) noexcept {
  if (is_shared(mutex)) return REAL(pthread_mutex_consistent)(mutex);
  Mutex& m = of(mutex);
  Fiber* me = self();
  if (!(kind_of(m) & kRobust) || m.word.owner() != me || m.owner != kInconsistent) return EINVAL;
  m.owner = static_cast<int>(me->id);
  return 0;
}

FIBERTHREAD_EXPORT int pthread_mutex_getprioceiling(const pthread_mutex_t* mutex, int* ceiling) noexcept {
  auto* m = const_cast<pthread_mutex_t*>(mutex);
  if (is_shared(m)) return REAL(pthread_mutex_getprioceiling)(mutex, ceiling);
  if (kind_of(of(m)) < 0 || !(kind_of(of(m)) & kProtect)) return EINVAL;
  *ceiling = static_cast<int>(of(m).state >> kCeilingShift & 0xff);
  return 0;
}

FIBERTHREAD_EXPORT int pthread_mutex_setprioceiling(pthread_mutex_t* mutex, int ceiling, int* old) noexcept {
  if (is_shared(mutex)) return REAL(pthread_mutex_setprioceiling)(mutex, ceiling, old);
  Mutex& m = of(mutex);
  int kind = kind_of(m);
  if (kind < 0 || !(kind & kProtect)) return EINVAL;
  if (ceiling < sched_get_priority_min(SCHED_FIFO) || ceiling > sched_get_priority_max(SCHED_FIFO)) return EINVAL;
  Fiber* me = self();
  bool mine = held_by(m, me);
  if (mine && (kind & kType) == PTHREAD_MUTEX_ERRORCHECK) return EDEADLK;
  if (!(mine && (kind & kType) == PTHREAD_MUTEX_RECURSIVE)) {
    mine = false;
    m.word.lock(me);
  }
  asm("" : "+r"(old));  // declared nonnull, but libc takes null
  if (old) *old = static_cast<int>(m.state >> kCeilingShift & 0xff);
  m.state = (m.state & kOwnerDied) | static_cast<unsigned>(ceiling) << kCeilingShift;
  if (!mine) m.word.unlock(me);
  return 0;
}

FIBERTHREAD_ALIAS(__pthread_mutex_lock, pthread_mutex_lock);
FIBERTHREAD_ALIAS(__pthread_mutex_unlock, pthread_mutex_unlock);
FIBERTHREAD_ALIAS(__pthread_mutex_trylock, pthread_mutex_trylock);
FIBERTHREAD_ALIAS(__pthread_mutex_init, pthread_mutex_init);
FIBERTHREAD_ALIAS(__pthread_mutex_destroy, pthread_mutex_destroy);
FIBERTHREAD_ALIAS(pthread_mutex_consistent_np, pthread_mutex_consistent);
