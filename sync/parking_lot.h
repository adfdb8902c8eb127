// SPDX-License-Identifier: MIT
// Who waits on what: a table of wait queues keyed by address, so that a primitive needs only a word of its own and no
// memory for its waiters. (The idea is WebKit's ParkingLot.)
//
// The contract. An address has a FIFO queue. Everything about it happens under one lock, its bucket's:
//   - who wants to wait runs its `validate` there and is queued in the same critical section if that says yes;
//   - who wants to wake takes waiters out there, and may change the primitive's word there as well.
// So a word whose "somebody waits" bit is only set and cleared under the bucket lock always agrees with the queue. The
// address is a key and never read, so waking is safe after the object is gone. A waiter lives on its owner's stack until
// it has been marked `signaled`; after that nobody else touches it. While it is taken out but not yet marked it is
// in transit: its owner can no longer give up, only wait for the mark, which comes at once.
//
// A waiter is queued before its fiber leaves its stack: park_if() commits only afterwards and looks at `signaled` once
// more, so an early wake-up is found.
//
// Who may call: fibers, foreign threads, and the library's signal handling outside Busy. Only wait() and park() may
// park; nothing here may be called with a SpinLock held. Functors run under the bucket lock: a few loads and CASes on the
// caller's own words, no call that may wait, no other use of the parking lot.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/spinlock.h"
#include "sched/wait.h"

namespace fiberthread {

enum class WakeReason {
  Woken,        // somebody took us out; Waiter::token says what he wrote
  Invalid,      // validate() said no: never queued
  TimedOut,     // the deadline has passed; no longer queued
  Interrupted,  // an interrupt of the mask is set; no longer queued
};

struct Bucket;

// One wait, on the stack of who waits. The first three fields are the caller's to fill in.
struct Waiter {
  const void* requeue_to = nullptr;  // address that requeue() may move it to
  uint32_t tag = 0;                  // for wakers' pick functions
  bool in_front = false;             // goes to the head of the queue: it waited before and lost a race
  bool requeued = false;             // set by requeue(): then neither deadline nor interrupts end the wait
  uint64_t token = 0;                // between the caller and who takes it out

  FiberRecord* fiber = self();  // here and not under a bucket's lock: making the record of a foreign thread calls malloc
  const void* address = nullptr;
  std::atomic<Bucket*> bucket{nullptr};  // where it is queued; null: taken out
  std::atomic<uint32_t> signaled{0};
  Waiter* next = nullptr;       // towards the tail
  Waiter* prev = nullptr;       // the head's is the tail
  Waiter* next_head = nullptr;  // in a head: that of another address in this bucket
};

struct alignas(64) Bucket {
  SpinLock lock;
  std::atomic<bool> used{false};
  Waiter* heads = nullptr;  // the first waiter of each address
};

// The queue of one address, locked. Busy as long as it lives.
class LockedQueue {
 public:
  explicit LockedQueue(const void* address);
  ~LockedQueue() { bucket_.lock.unlock(); }
  LockedQueue(const LockedQueue&) = delete;

  Waiter* first() const;   // null: empty. Then along Waiter::next
  void add(Waiter& w);     // at the tail, or the head if w.in_front
  void remove(Waiter& w);  // one of this queue; it is in transit then

 private:
  Busy busy_;
  const void* address_;
  Bucket& bucket_;
};

// Waiters taken out, to be woken once the lock is released, in order. From the first one on the caller is Busy: a handler that jumps out
// of it, or an end of the caller by unwinding, would leave them waiting for ever.
class WakeList {
 public:
  void add(LockedQueue& q, Waiter& w) {
    q.remove(w);
    append(w);
  }
  void append(Waiter& w) {  // one that was taken out by other means
    w.next = nullptr;
    *tail_ = &w;
    tail_ = &w.next;
    if (n_++ == 0) tls_busy = tls_busy + 1;
  }
  size_t size() const { return n_; }
  void wake_all();  // without the lock; once

 private:
  Waiter* first_ = nullptr;
  Waiter** tail_ = &first_;
  size_t n_ = 0;
};

// Waits for a queued waiter to be taken out, after the lock was released. `deadline_ns` is absolute on now_ns()'s clock.
// An interrupt in `interrupt_mask` ends the wait; it is still pending when this returns, except that a signal's handler
// may have run by then if the caller is not Busy. A signal not in the mask is handled meanwhile, unless the
// caller is Busy. Returns Woken, TimedOut or Interrupted.
WakeReason wait(Waiter& w, const ParkReason& reason, uint64_t deadline_ns = kNever, uint32_t interrupt_mask = 0);

// The same for whoever queues waiters of his own: until `signaled` is set, which is the last that who takes the waiter out does with
// it. withdraw() takes it out unless somebody did so before. FiberRecord::wait.pins was counted up when it was queued.
// woken() does what is to be done before the stack may be unwound again.
template <class Withdraw, class OnWoken>
WakeReason wait_signaled(FiberRecord* me, std::atomic<uint32_t>& signaled, const ParkReason& reason, uint64_t deadline, uint32_t mask,
                         Withdraw withdraw, OnWoken woken) {
  // Acquire: what the waker did before is seen.
  auto over = [&] { return signaled.load(std::memory_order_acquire) != 0; };
  WaitEnd end = wait_until(me, signaled, 0, over, withdraw, reason, deadline, mask);
  if (end == WaitEnd::Over) woken();
  wait_over(me);
  if (end == WaitEnd::Over) return WakeReason::Woken;
  if (end == WaitEnd::Ends) embedder().end_now();
  return end == WaitEnd::Interrupted ? WakeReason::Interrupted : WakeReason::TimedOut;
}
template <class Withdraw>
WakeReason wait_signaled(FiberRecord* me, std::atomic<uint32_t>& signaled, const ParkReason& reason, uint64_t deadline, uint32_t mask,
                         Withdraw withdraw) {
  return wait_signaled(me, signaled, reason, deadline, mask, withdraw, [] {});
}

// The usual wait: locks the queue of `address`, runs validate(), queues `w` if that returns true, unlocks, runs
// before_sleep(), waits.
template <class Validate, class BeforeSleep>
WakeReason park(const void* address, Waiter& w, Validate validate, BeforeSleep before_sleep, const ParkReason& reason,
                uint64_t deadline_ns = kNever, uint32_t interrupt_mask = 0) {
  {
    LockedQueue q(address);
    if (!validate()) return WakeReason::Invalid;
    q.add(w);
  }
  before_sleep();
  return wait(w, reason, deadline_ns, interrupt_mask);
}

template <class Validate>
WakeReason park(const void* address, Waiter& w, Validate validate, const ParkReason& reason, uint64_t deadline_ns = kNever,
                uint32_t interrupt_mask = 0) {
  return park(address, w, validate, [] {}, reason, deadline_ns, interrupt_mask);
}

// Wakes the first n waiters of `address`. done(woken, more) runs under the bucket lock. Returns how many it woke.
template <class Done>
size_t unpark_waiters(const void* address, size_t n, Done done) {
  WakeList list;
  {
    LockedQueue q(address);
    while (list.size() < n && q.first()) list.add(q, *q.first());
    done(list.size(), q.first() != nullptr);
  }
  list.wake_all();
  return list.size();
}
inline size_t unpark_waiters(const void* address, size_t n) {
  return unpark_waiters(address, n, [](size_t, bool) {});
}
inline size_t unpark_all(const void* address) { return unpark_waiters(address, ~size_t{0}); }

// Empties the queue of `from` in order: each waiter whose requeue_to is `to` goes to the tail of the queue of `to`, without
// waking, the others are woken. Both queues are locked meanwhile. may_move() is asked once before the first
// would be moved, and while it says no, a waiter is woken instead (with token `more` = 1 if others follow it)
// and not asked again: one that wakes up stands for those behind it. Returns how many were taken from `from`.
size_t requeue_waiters(const void* from, const void* to, bool (*may_move)(void*), void* context);

}  // namespace fiberthread
