// SPDX-License-Identifier: MIT
// A table of wait queues keyed by address. So a primitive needs only a word of its own and no memory for its waiters. (The idea is WebKit's
// ParkingLot.)
//
// The contract. Each address has a queue: the highest FiberRecord::wait.rank comes first, and among equals the first to come. All changes
// to it happen under one lock, that of its bucket:
//   - A thread that wants to wait runs its `validate` there. If that returns true, the thread is queued in the same critical section.
//   - A thread that wants to wake takes waiters out there, and may change the primitive's word there as well.
// So a "has waiters" bit in the word that is set and cleared only under the bucket lock always agrees with the queue. The address is a key
// and never read, so waking is safe after the object is gone. A waiter lives on its owner's stack until it has been marked `signaled`;
// after that no other thread touches it. While it is taken out but not yet marked it is in transit. Then its owner can no longer give up,
// only wait for the mark, which comes at once.
//
// A waiter is queued before its fiber leaves its stack. park_if() commits only afterwards and looks at `signaled` once more, so it finds an
// early wake-up.
//
// Who may call: fibers, foreign threads, and the library's signal handling outside Busy. Only wait() and park() may park. A caller must not
// hold a SpinLock. Functors run under the bucket lock: a few loads and CASes on the caller's own words, no call that may wait, no other use
// of the parking lot.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/spinlock.h"
#include "sched/wait.h"

namespace fiberthread {

enum class WakeReason {
  Woken,        // a waking thread took the waiter out; Waiter::token has its message
  Invalid,      // validate() returned false: never queued
  TimedOut,     // the deadline has passed; no longer queued
  Interrupted,  // an interrupt in the mask is set; no longer queued
};

struct Bucket;

// One wait, on the stack of the waiting thread, which fills in the first three fields.
struct Waiter {
  const void* requeue_to = nullptr;  // address that requeue_waiters() may move it to
  uint32_t tag = 0;                  // for the primitive, which looks at it in the queue
  bool in_front = false;             // comes first among its equals, because it waited before and lost a race
  uint8_t rank = 0;                  // its fiber's, since it was queued
  bool requeued = false;             // set by requeue_waiters(): then neither deadline nor interrupts end the wait
  uint64_t token = 0;                // between the waiting thread and the one that takes it out

  FiberRecord* fiber = self();  // here and not under a bucket's lock: making the record of a foreign thread calls malloc
  const void* address = nullptr;
  std::atomic<Bucket*> bucket{nullptr};  // where it is queued; null: taken out
  std::atomic<uint32_t> signaled{0};
  Waiter* next = nullptr;       // towards the tail
  Waiter* prev = nullptr;       // towards the head; the head's is the tail
  Waiter* next_head = nullptr;  // in a head: the head of another address in this bucket
};

struct alignas(64) Bucket {
  SpinLock lock;
  std::atomic<bool> used{false};
  Waiter* heads = nullptr;  // the first waiter of each address
};

// The queue of one address, locked. The caller is Busy as long as it lives.
class LockedQueue {
 public:
  explicit LockedQueue(const void* address);
  ~LockedQueue() { bucket_.lock.unlock(); }
  LockedQueue(const LockedQueue&) = delete;

  Waiter* first() const;   // null: empty. The next ones follow by Waiter::next
  void add(Waiter& w);     // behind its equals, or before them if w.in_front
  void remove(Waiter& w);  // one of this queue, which is in transit then

 private:
  Busy busy_;
  const void* address_;
  Bucket& bucket_;
};

// The queues of two addresses, locked together. The addresses may be equal. The caller is Busy as long as it lives.
class LockedQueues {
 public:
  LockedQueues(const void* from, const void* to);
  ~LockedQueues();
  LockedQueues(const LockedQueues&) = delete;

  Waiter* first() const;   // of `from`; null: empty. The next ones follow by Waiter::next
  void remove(Waiter& w);  // one of `from`, which is in transit then
  // Puts one of `from` behind its equals in the queue of `to`. It sleeps on, and its wait ends as before: by a thread that takes it out, at
  // its deadline or by an interrupt.
  void move(Waiter& w);

 private:
  Busy busy_;
  const void *from_, *to_;
  Bucket &a_, &b_;
};

// Waiters that were taken out, to be woken in this order once the lock is released. The caller is Busy from the first one on. Otherwise a
// handler that jumps out of the caller, or unwinding of the caller, would leave these waiters waiting for ever.
class WakeList {
 public:
  template <class Queue>
  void add(Queue& q, Waiter& w) {
    q.remove(w);
    append(w);
  }
  void append(Waiter& w) {  // a waiter that was taken out by other means
    w.next = nullptr;
    *tail_ = &w;
    tail_ = &w.next;
    if (n_++ == 0) tls_busy = tls_busy + 1;
  }
  size_t size() const { return n_; }
  void wake_all();  // without the lock, and once only

 private:
  Waiter* first_ = nullptr;
  Waiter** tail_ = &first_;
  size_t n_ = 0;
};

// Waits until a queued waiter is taken out. The caller has released the lock. `deadline_ns` is absolute on now_ns()'s clock. An interrupt
// in `interrupt_mask` ends the wait. It is still pending when this returns, except that a signal's handler may have run by then if the
// caller is not Busy. A signal that is not in the mask is handled meanwhile, unless the caller is Busy. Returns Woken, TimedOut or
// Interrupted. Parks.
WakeReason wait(Waiter& w, const ParkReason& reason, uint64_t deadline_ns = kNever, uint32_t interrupt_mask = 0);

// Waits in the same way in a queue of the caller's own, until `signaled` is set. Setting it must be the last touch of the thread that takes
// the waiter out. withdraw() takes the waiter out, and returns false if another thread has done so before. The caller counts
// FiberRecord::wait.pins up when it queues the waiter. woken() does what must come before the stack may be unwound again. Parks.
template <class Withdraw, class OnWoken>
WakeReason wait_signaled(FiberRecord* me, std::atomic<uint32_t>& signaled, const ParkReason& reason, uint64_t deadline, uint32_t mask,
                         Withdraw withdraw, OnWoken woken) {
  // Acquire: the caller sees what the waking thread did before.
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

// Locks the queue of `address` and runs validate(). If that returns true, queues `w`, unlocks, runs before_sleep() and waits. Parks.
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

// Wakes the first n waiters of `address`, and returns how many it woke. done(woken, more) runs under the bucket lock. Never parks.
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

// Empties the queue of `from` in order, and returns how many waiters it took out. A waiter whose requeue_to is `to` goes to the tail of the
// queue of `to` without waking. The others are woken. Both queues are locked meanwhile. may_move() is asked once, before the first waiter
// would be moved. If it returns false, that waiter is woken instead, and stands for those behind it: its token is 1 if others follow. Never
// parks.
size_t requeue_waiters(const void* from, const void* to, bool (*may_move)(void*), void* context);

}  // namespace fiberthread
