// SPDX-License-Identifier: MIT
// pthread_rwlock_*. A private lock is one word in glibc's object. The thread that gives the lock up hands it to the waiters. As in NPTL,
// readers pass waiting writers unless the lock has PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP.
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "sched/observe/waits.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/shared_use.h"
#include "shim/thread_names.h"
#include "shim/time.h"
#include "shim/user_memory.h"
#include "sync/parking_lot.h"

namespace fiberthread {
namespace {

struct RwLock {
  std::atomic<uint32_t> word;  // {readers: 30, waiting, writer}; `waiting` may be left over from a timeout
};
constexpr uint32_t kWriter = 1, kWaiting = 2, kReader = 4, kMaxReaders = (1u << 28) - 1;  // as in NPTL
enum Kind : uint32_t { kWantsToRead, kWantsToWrite };                                     // Waiter::tag

RwLock& of(pthread_rwlock_t* l) { return *reinterpret_cast<RwLock*>(l); }
// The writer's tid, where glibc has it.
int& writer(pthread_rwlock_t* l) { return l->__data.__cur_writer; }
bool is_shared(const pthread_rwlock_t* l) { return l->__data.__shared != 0; }
bool writers_first(const pthread_rwlock_t* l) { return l->__data.__flags == PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP; }

bool writes(pthread_rwlock_t* l, const FiberRecord* me) {
  return of(l).word.load(std::memory_order_relaxed) & kWriter &&
         __atomic_load_n(&writer(l), __ATOMIC_RELAXED) == static_cast<int>(me->identity.id);
}

int read_now(pthread_rwlock_t* l) {
  auto& word = of(l).word;
  uint32_t w = word.load(std::memory_order_relaxed);
  while (!(w & kWriter) && !(w & kWaiting && writers_first(l))) {
    if (w / kReader >= kMaxReaders) return EAGAIN;
    if (word.compare_exchange_weak(w, w + kReader, std::memory_order_acquire, std::memory_order_relaxed)) return 0;
  }
  return EBUSY;
}

int write_now(pthread_rwlock_t* l, FiberRecord* me) {
  auto& word = of(l).word;
  uint32_t w = word.load(std::memory_order_relaxed);
  while (w == 0 || w == kWaiting)
    if (word.compare_exchange_weak(w, w | kWriter, std::memory_order_acquire, std::memory_order_relaxed)) {
      __atomic_store_n(&writer(l), static_cast<int>(me->identity.id), __ATOMIC_RELAXED);
      return 0;
    }
  return EBUSY;
}

// Takes out of the queue the waiters whose turn it is while `readers` hold the lock. Returns what they add to the word.
uint32_t admit(LockedQueue& q, bool writers_first, uint32_t readers, WakeList& list) {
  Waiter* first_writer = nullptr;
  bool any_reader = false;
  for (Waiter* w = q.first(); w; w = w->next) {
    if (w->tag == kWantsToWrite) first_writer = first_writer ? first_writer : w;
    else any_reader = true;
  }
  if (first_writer && (writers_first || !any_reader)) {
    if (readers) return 0;
    list.add(q, *first_writer);
    return kWriter;
  }
  uint32_t n = 0;
  for (Waiter* w = q.first(); w;) {
    Waiter* next = w->next;
    if (w->tag == kWantsToRead) {
      list.add(q, *w);
      n += kReader;
    }
    w = next;
  }
  return n;
}

// Gives up `mine`, and hands the lock on. `mine` is kWriter, kReader, or 0 after a waiter has left the queue.
void hand_over(pthread_rwlock_t* l, uint32_t mine) {
  WakeList list;
  {
    LockedQueue q(l);
    bool prefer = writers_first(l);
    auto& word = of(l).word;
    // With kWaiting set, readers still come and go without this lock until the word says that no reader is left. The last reader comes here
    // as well. So we give up our part first. If that was the last, we hold the lock as a writer meanwhile.
    uint32_t w = word.load(std::memory_order_relaxed), rest;
    do {
      rest = (w - mine) & ~kWaiting;
      if (rest & kWriter) return;  // with mine == 0 only
    } while (!word.compare_exchange_weak(w, kWaiting | (rest ? rest : kWriter), std::memory_order_acq_rel, std::memory_order_relaxed));
    uint32_t holds = rest ? 0 : kWriter;
    uint32_t add = admit(q, prefer, rest, list);
    uint32_t waiting = q.first() ? kWaiting : 0;
    w = word.load(std::memory_order_relaxed);
    // Release: the next holders see what was done under the lock. This is the last access, except the next holders' own.
    while (
        !word.compare_exchange_weak(w, ((w - holds + add) & ~kWaiting) | waiting, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }
  list.wake_all();
}

// Locks a shared lock. `wait` is libc's call that waits as long as necessary. The writer's tid is stored.
template <class Wait>
int lock_shared(pthread_rwlock_t* l, Kind kind, Wait wait) {
  AsKernelThread as(kind == kWantsToWrite ? Use::Owns : Use::Waits);
  constexpr unsigned kWriterHere = 2, kReaders = ~7u;  // of libc's __readers
  unsigned held = __atomic_load_n(&l->__data.__readers, __ATOMIC_RELAXED) & (kWriterHere | (kind == kWantsToWrite ? kReaders : 0));
  Blocking blocking(held != 0);
  return wait();
}

// Without `t`, waits for ever.
int lock(pthread_rwlock_t* l, Kind kind, clockid_t clock = CLOCK_MONOTONIC, const timespec* t = nullptr) {
  FiberRecord* me = self();
  for (;;) {
    int e = kind == kWantsToRead ? read_now(l) : write_now(l, me);
    if (e != EBUSY) return e;
    if (writes(l, me)) return EDEADLK;
    Waiter w;
    w.tag = kind;
    auto& word = of(l).word;
    bool prefer = writers_first(l);
    auto must_wait = [&] {
      uint32_t now = word.load(std::memory_order_relaxed);
      for (;;) {
        bool free = kind == kWantsToWrite ? now == 0 || now == kWaiting : !(now & kWriter) && !(now & kWaiting && prefer);
        if (free) return false;
        if (now & kWaiting || word.compare_exchange_weak(now, now | kWaiting, std::memory_order_relaxed)) return true;
      }
    };
    const char* what = t ? "rwlock (timed)" : kind == kWantsToRead ? "rwlock (read)" : "rwlock (write)";
    WakeReason r = park(l, w, must_wait, {what, l}, deadline_from(clock, t));
    if (r == WakeReason::Woken) {  // the lock was handed to us
      if (kind == kWantsToWrite) __atomic_store_n(&writer(l), static_cast<int>(me->identity.id), __ATOMIC_RELAXED);
      return 0;
    }
    if (r == WakeReason::TimedOut) {
      // Readers may have queued behind the writer that has left the queue.
      hand_over(l, 0);
      if (reached(clock, t)) return ETIMEDOUT;
    }
  }
}

int timed_lock(pthread_rwlock_t* l, Kind kind, clockid_t clock, const timespec* t) {
  return valid(*t) ? lock(l, kind, clock, t) : EINVAL;  // checked at once, as in NPTL
}

// For reports. It is not known which fibers read.
void look(ParkReason& r) {
  pthread_rwlock_t copy;
  if (!copy_user(&copy, static_cast<const pthread_rwlock_t*>(r.object))) return;
  if (of(&copy).word.load(std::memory_order_relaxed) & kWriter) r.owner = fiber_of_tid(writer(&copy));
}
WaitLook rwlock_look{"rwlock", look};
[[gnu::constructor]] void register_look() { wait_look_by(rwlock_look); }

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int pthread_rwlock_init(pthread_rwlock_t* l, const pthread_rwlockattr_t* attr) noexcept {
  int shared = PTHREAD_PROCESS_PRIVATE, kind = PTHREAD_RWLOCK_DEFAULT_NP;
  if (attr) {
    pthread_rwlockattr_getpshared(attr, &shared);
    pthread_rwlockattr_getkind_np(attr, &kind);
    if (shared == PTHREAD_PROCESS_SHARED) return REAL(pthread_rwlock_init)(l, attr);
  }
  memset(l, 0, sizeof *l);
  l->__data.__flags = static_cast<unsigned>(kind);
  return 0;
}

FIBERTHREAD_EXPORT int pthread_rwlock_destroy(pthread_rwlock_t* l) noexcept { return is_shared(l) ? REAL(pthread_rwlock_destroy)(l) : 0; }

FIBERTHREAD_EXPORT int pthread_rwlock_rdlock(pthread_rwlock_t* l) noexcept {
  if (is_shared(l)) return lock_shared(l, kWantsToRead, [=] { return REAL(pthread_rwlock_rdlock)(l); });
  return lock(l, kWantsToRead);
}
FIBERTHREAD_EXPORT int pthread_rwlock_wrlock(pthread_rwlock_t* l) noexcept {
  if (is_shared(l)) return lock_shared(l, kWantsToWrite, [=] { return REAL(pthread_rwlock_wrlock)(l); });
  return lock(l, kWantsToWrite);
}
FIBERTHREAD_EXPORT int pthread_rwlock_tryrdlock(pthread_rwlock_t* l) noexcept {
  return is_shared(l) ? REAL(pthread_rwlock_tryrdlock)(l) : read_now(l);
}
FIBERTHREAD_EXPORT int pthread_rwlock_trywrlock(pthread_rwlock_t* l) noexcept {
  if (!is_shared(l)) return write_now(l, self());
  AsKernelThread as(Use::Owns);
  return REAL(pthread_rwlock_trywrlock)(l);
}
FIBERTHREAD_EXPORT int pthread_rwlock_timedrdlock(pthread_rwlock_t* l, const timespec* t) noexcept {
  if (is_shared(l))
    return lock_shared(l, kWantsToRead,
                       [=] { return in_kernel_time(CLOCK_REALTIME, t, [=](auto t) { return REAL(pthread_rwlock_timedrdlock)(l, t); }); });
  return timed_lock(l, kWantsToRead, CLOCK_REALTIME, t);
}
FIBERTHREAD_EXPORT int pthread_rwlock_timedwrlock(pthread_rwlock_t* l, const timespec* t) noexcept {
  if (is_shared(l))
    return lock_shared(l, kWantsToWrite,
                       [=] { return in_kernel_time(CLOCK_REALTIME, t, [=](auto t) { return REAL(pthread_rwlock_timedwrlock)(l, t); }); });
  return timed_lock(l, kWantsToWrite, CLOCK_REALTIME, t);
}
FIBERTHREAD_EXPORT int pthread_rwlock_clockrdlock(pthread_rwlock_t* l, clockid_t clock, const timespec* t) noexcept {
  if (is_shared(l)) {
    if (!is_wait_clock(clock)) return EINVAL;
    return lock_shared(l, kWantsToRead,
                       [=] { return in_kernel_time(clock, t, [=](auto t) { return REAL(pthread_rwlock_clockrdlock)(l, clock, t); }); });
  }
  return is_wait_clock(clock) ? timed_lock(l, kWantsToRead, clock, t) : EINVAL;
}
FIBERTHREAD_EXPORT int pthread_rwlock_clockwrlock(pthread_rwlock_t* l, clockid_t clock, const timespec* t) noexcept {
  if (is_shared(l)) {
    if (!is_wait_clock(clock)) return EINVAL;
    return lock_shared(l, kWantsToWrite,
                       [=] { return in_kernel_time(clock, t, [=](auto t) { return REAL(pthread_rwlock_clockwrlock)(l, clock, t); }); });
  }
  return is_wait_clock(clock) ? timed_lock(l, kWantsToWrite, clock, t) : EINVAL;
}

FIBERTHREAD_EXPORT int pthread_rwlock_unlock(pthread_rwlock_t* l) noexcept {
  if (is_shared(l)) {
    AsKernelThread as(Use::Waits);  // libc's function checks whether the caller is the writer
    return REAL(pthread_rwlock_unlock)(l);
  }
  auto& word = of(l).word;
  uint32_t w = word.load(std::memory_order_relaxed);
  uint32_t mine = w & kWriter ? kWriter : kReader;
  if (mine == kWriter) __atomic_store_n(&writer(l), 0, __ATOMIC_RELAXED);
  for (;;) {
    if (w & kWaiting && (w & ~kWaiting) == mine) break;
    if (word.compare_exchange_weak(w, w - mine, std::memory_order_release, std::memory_order_relaxed)) return 0;
  }
  hand_over(l, mine);
  return 0;
}

FIBERTHREAD_ALIAS(__pthread_rwlock_init, pthread_rwlock_init);
FIBERTHREAD_ALIAS(__pthread_rwlock_destroy, pthread_rwlock_destroy);
FIBERTHREAD_ALIAS(__pthread_rwlock_rdlock, pthread_rwlock_rdlock);
FIBERTHREAD_ALIAS(__pthread_rwlock_wrlock, pthread_rwlock_wrlock);
FIBERTHREAD_ALIAS(__pthread_rwlock_tryrdlock, pthread_rwlock_tryrdlock);
FIBERTHREAD_ALIAS(__pthread_rwlock_trywrlock, pthread_rwlock_trywrlock);
FIBERTHREAD_ALIAS(__pthread_rwlock_unlock, pthread_rwlock_unlock);
