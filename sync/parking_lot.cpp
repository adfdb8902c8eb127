// SPDX-License-Identifier: MIT
#include "sync/parking_lot.h"

#include <optional>

#include "sched/chaos.h"
#include "sched/large.h"
#include "sched/life/fork.h"

namespace fiberthread {
namespace {

constexpr size_t kBucketBits = 12, kBuckets = size_t{1} << kBucketBits;

FIBERTHREAD_LARGE constinit Bucket buckets[kBuckets];
// The buckets that were ever used, so that the child of a fork touches only those. Relaxed: it is read where one thread is left.
constinit std::atomic<uint64_t> used_buckets[kBuckets / 64];

Bucket& bucket_of(const void* address) {
  // Fibonacci hashing: the high bits of the product depend on all bits of the address.
  return buckets[reinterpret_cast<uintptr_t>(address) * 0x9E3779B97F4A7C15u >> (64 - kBucketBits)];
}

void lock_bucket(Bucket& b) {
  if (__builtin_expect(!b.used.load(std::memory_order_relaxed), 0)) {
    // Before locking: a fork may come right after it.
    size_t i = static_cast<size_t>(&b - buckets);
    used_buckets[i / 64].fetch_or(uint64_t{1} << i % 64, std::memory_order_relaxed);
    b.used.store(true, std::memory_order_relaxed);
  }
  b.lock.lock();
}

// Returns the link that points to the head of the address's queue, or the null link at the end.
Waiter** head_link(Bucket& b, const void* address) {
  Waiter** p = &b.heads;
  while (*p && (*p)->address != address) p = &(*p)->next_head;
  return p;
}

// Returns the waiter that `w` is queued before. Null: it goes to the tail, as nearly always, since ranks are rare.
Waiter* comes_after(const Waiter& w, Waiter* head) {
  if (!w.in_front && head->prev->rank >= w.rank) return nullptr;
  Waiter* other = head;
  while (other && (w.in_front ? other->rank > w.rank : other->rank >= w.rank)) other = other->next;
  return other;
}

void queue_add(Bucket& b, const void* address, Waiter& w) {
  w.address = address;
  w.bucket.store(&b, std::memory_order_relaxed);  // published by the bucket lock
  Waiter** link = head_link(b, address);
  Waiter* head = *link;
  w.next = w.next_head = nullptr;
  if (!head) {
    w.prev = &w;
    *link = &w;
    return;
  }
  Waiter* after = comes_after(w, head);
  if (after == head) {
    w.next = head;
    w.prev = head->prev;
    w.next_head = head->next_head;
    head->prev = &w;
    *link = &w;
  } else {
    w.next = after;
    Waiter*& prev = (after ? after : head)->prev;
    w.prev = prev;
    prev->next = &w;
    prev = &w;
  }
}

void unlink(Bucket& b, Waiter& w) {
  Waiter** link = head_link(b, w.address);
  Waiter* head = *link;
  if (!head) __builtin_unreachable();  // w is in that queue
  if (&w != head) {
    w.prev->next = w.next;
    (w.next ? w.next : head)->prev = w.prev;
  } else if (w.next) {
    w.next->prev = w.prev;
    w.next->next_head = w.next_head;
    *link = w.next;
  } else {
    *link = w.next_head;
  }
}

void queue_remove(Bucket& b, Waiter& w) {
  unlink(b, w);
  // Relaxed: the waiter's owner only concludes that the mark will come.
  w.bucket.store(nullptr, std::memory_order_relaxed);
}

// Takes w out, unless another thread did so before or w may no longer give up. Returns whether it did.
bool withdraw(Waiter& w) {
  for (;;) {
    Bucket* b = w.bucket.load(std::memory_order_relaxed);
    if (!b) return false;
    Busy busy;
    chaos_delay();
    lock_bucket(*b);
    bool here = w.bucket.load(std::memory_order_relaxed) == b;  // false: it was moved meanwhile
    bool out = here && !w.requeued;
    if (out) queue_remove(*b, w);
    b->lock.unlock();
    if (here) return out;
  }
}

}  // namespace

LockedQueue::LockedQueue(const void* address) : address_(address), bucket_(bucket_of(address)) { lock_bucket(bucket_); }

Waiter* LockedQueue::first() const { return *head_link(bucket_, address_); }

void LockedQueue::add(Waiter& w) {
  w.fiber->wait.pins++;
  w.rank = w.fiber->wait.rank;
  queue_add(bucket_, address_, w);
}

void LockedQueue::remove(Waiter& w) { queue_remove(bucket_, w); }

LockedQueues::LockedQueues(const void* from, const void* to) : from_(from), to_(to), a_(bucket_of(from)), b_(bucket_of(to)) {
  // By address: two threads that move waiters in opposite directions must not wait for each other.
  lock_bucket(&a_ < &b_ ? a_ : b_);
  if (&a_ != &b_) lock_bucket(&a_ < &b_ ? b_ : a_);
}

LockedQueues::~LockedQueues() {
  if (&a_ != &b_) b_.lock.unlock();
  a_.lock.unlock();
}

Waiter* LockedQueues::first() const { return *head_link(a_, from_); }

void LockedQueues::remove(Waiter& w) { queue_remove(a_, w); }

void LockedQueues::move(Waiter& w) {
  // Its owner may look at `bucket` without a lock, and must not take it for taken out: the mark would not come.
  unlink(a_, w);
  w.in_front = false;
  queue_add(b_, to_, w);
}

void WakeList::wake_all() {
  if (!first_) return;
  Busy leave;
  tls_busy = tls_busy - 1;  // of the first append()
  for (Waiter* w = first_; w;) {
    // After the mark the waiter may be gone at once.
    Waiter* next = w->next;
    FiberRecord* f = w->fiber;
    chaos_delay();
    w->signaled.store(1, std::memory_order_release);
    unpark(f);
    w = next;
  }
}

WakeReason wait(Waiter& w, const ParkReason& reason, uint64_t deadline, uint32_t mask) {
  // Each park_if() handles signals when it ends. But one that ends the wait must still be pending when the caller looks.
  std::optional<Busy> busy;
  if (mask & kInterruptSafePoint) busy.emplace();
  return wait_signaled(w.fiber, w.signaled, reason, deadline, mask, [&] { return withdraw(w); });
}

size_t requeue_waiters(const void* from, const void* to, bool (*may_move)(void*), void* context) {
  WakeList list;
  size_t n = 0;
  {
    LockedQueues q(from, to);
    bool asked = false;
    Waiter* stand_in = nullptr;
    while (Waiter* w = q.first()) {
      n++;
      bool move = w->requeue_to == to;
      if (move && !asked) {
        asked = true;
        if (!may_move(context)) {
          stand_in = w;
          move = false;
        }
      }
      if (move) {
        w->requeued = true;
        q.move(*w);
        if (stand_in) {
          stand_in->token = 1;
          awaited_by_others(stand_in->fiber);
        }
      } else {
        list.add(q, *w);
      }
    }
  }
  list.wake_all();
  return n;
}

FIBERTHREAD_IN_FORK_CHILD(Waits, parking_lot, [](FiberRecord*) {
  for (size_t i = 0; i < kBuckets / 64; i++)
    for (uint64_t bits = used_buckets[i].load(std::memory_order_relaxed); bits; bits &= bits - 1) {
      Bucket& b = buckets[i * 64 + static_cast<size_t>(__builtin_ctzll(bits))];
      b.heads = nullptr;
      b.lock.reset();
    }
})

}  // namespace fiberthread
