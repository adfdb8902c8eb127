// SPDX-License-Identifier: MIT
// The queues of runnable fibers: a slot's local queue and inbox, and the global queue.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// One producer (the worker that holds the slot), many consumers (that worker and thieves). A ring of 65,536 entries. The positions of head
// and tail run free and wrap.
//
// Consumers take at the head, by a CAS. The producer may also take back what it pushed last. It lowers the tail, and then changes the
// version beside the head's position, so that the CAS of a thief that has seen the old tail fails. A thread that sees the new version also
// sees the new tail.
class LocalQueue {
 public:
#ifdef FIBERTHREAD_QUEUE_SIZE  // see Makefile
  static constexpr uint32_t kSize = FIBERTHREAD_QUEUE_SIZE;
  static_assert(kSize >= 2 && (kSize & (kSize - 1)) == 0, "FIBERTHREAD_QUEUE_SIZE is a power of two");  // positions wrap
#else
  static constexpr uint32_t kSize = 65536;
#endif

  // Adds f at the tail. Producer only. Returns false when full.
  bool push(FiberRecord* f) {
    uint32_t t = tail_.load(std::memory_order_relaxed);
    if (t - position(head_.load(std::memory_order_acquire)) >= kSize) return false;
    entry(t).store(f, std::memory_order_relaxed);
    tail_.store(t + 1, std::memory_order_release);  // publishes the entry
    return true;
  }

  // Takes the oldest. Any consumer.
  FiberRecord* pop() {
    uint64_t h = head_.load(std::memory_order_acquire);
    for (;;) {
      if (static_cast<int32_t>(tail_.load(std::memory_order_acquire) - position(h)) <= 0) return nullptr;
      FiberRecord* f = entry(position(h)).load(std::memory_order_relaxed);
      // If the entry was overwritten, head has changed and the CAS fails.
      if (head_.compare_exchange_weak(h, advanced(h, 1), std::memory_order_acq_rel, std::memory_order_acquire)) return f;
    }
  }

  // Makes what is in the queue now leave it oldest first, also by pop_newest(). Producer only.
  void keep_order() { in_order_.store(tail_.load(std::memory_order_relaxed), std::memory_order_relaxed); }
  // Returns true if some of that is left. Only a hint, unless the producer calls.
  bool keeps_order() const {
    // An old mark may be ahead again, once positions have wrapped.
    uint32_t left = in_order_.load(std::memory_order_relaxed) - position(head_.load(std::memory_order_relaxed));
    return left != 0 && left <= size();
  }

  // Takes the newest. Producer only.
  FiberRecord* pop_newest() {
    uint64_t h = head_.load(std::memory_order_acquire);
    uint32_t t = tail_.load(std::memory_order_relaxed);
    if (t == in_order_.load(std::memory_order_relaxed)) return pop();
    while (static_cast<int32_t>(t - position(h)) > 0) {
      FiberRecord* f = entry(t - 1).load(std::memory_order_relaxed);
      tail_.store(t - 1, std::memory_order_relaxed);  // published by the CAS
      if (head_.compare_exchange_strong(h, h + kVersion, std::memory_order_acq_rel, std::memory_order_acquire)) return f;
      tail_.store(t, std::memory_order_release);  // a thief came, and may have taken that entry
    }
    return nullptr;
  }

  // Moves half of this queue to `to`, whose producer is the caller, and returns one of these fibers to run. Null: none.
  FiberRecord* steal_into(LocalQueue& to) {
    for (;;) {
      uint64_t h = head_.load(std::memory_order_acquire);
      uint32_t t = tail_.load(std::memory_order_acquire);
      int32_t n = static_cast<int32_t>(t - position(h));
      if (n <= 0) return nullptr;
      n -= n / 2;
      uint32_t tt = to.tail_.load(std::memory_order_relaxed);
      uint32_t room = kSize - (tt - position(to.head_.load(std::memory_order_acquire)));
      if (static_cast<uint32_t>(n) > room + 1) n = static_cast<int32_t>(room + 1);
      FiberRecord* first = entry(position(h)).load(std::memory_order_relaxed);
      for (int32_t i = 1; i < n; i++)
        to.entry(tt + i - 1).store(entry(position(h) + i).load(std::memory_order_relaxed), std::memory_order_relaxed);
      if (!head_.compare_exchange_strong(h, advanced(h, static_cast<uint32_t>(n)), std::memory_order_acq_rel, std::memory_order_relaxed))
        continue;
      to.tail_.store(tt + n - 1, std::memory_order_release);
      return first;
    }
  }

  uint32_t size() const {
    int32_t n = static_cast<int32_t>(tail_.load(std::memory_order_acquire) - position(head_.load(std::memory_order_acquire)));
    return n > 0 ? static_cast<uint32_t>(n) : 0;
  }
  bool empty() const { return size() == 0; }
  void reset() {
    head_.store(0, std::memory_order_relaxed);
    tail_.store(0, std::memory_order_relaxed);
    in_order_.store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr uint64_t kVersion = uint64_t{1} << 32;
  static uint32_t position(uint64_t head) { return static_cast<uint32_t>(head); }
  static uint64_t advanced(uint64_t head, uint32_t n) { return (head & ~(kVersion - 1)) | (position(head) + n); }

  alignas(64) std::atomic<uint64_t> head_{0};  // version << 32 | position
  alignas(64) std::atomic<uint32_t> tail_{0};
  std::atomic<uint32_t> in_order_{0};  // the tail is not lowered below it; written by the producer
  // Not initialized, because writing it all took 128 page faults for each slot.
  alignas(64) FiberRecord* ring_[kSize];
  std::atomic_ref<FiberRecord*> entry(uint32_t position) { return std::atomic_ref(ring_[position % kSize]); }
};

// Many producers, one consumer at a time: the worker that gets the try-lock. So a thief can empty it while its holder runs a hog.
class Inbox {
 public:
  void push(FiberRecord* f) {
    FiberRecord* h = head_.load(std::memory_order_relaxed);
    do f->run.queue_next = h;
    while (!head_.compare_exchange_weak(h, f, std::memory_order_release, std::memory_order_relaxed));
  }

  // Takes the oldest fiber. Null if there is none, or if another worker is taking one.
  FiberRecord* pop() {
    if (empty() || !consumer_.try_lock()) return nullptr;
    if (!front_) {
      // The rest of a list that we take must always be visible somewhere. Otherwise a worker that looks before it sleeps would miss it.
      has_front_.store(true, std::memory_order_relaxed);  // published by the exchange
      FiberRecord* list = head_.exchange(nullptr, std::memory_order_acq_rel);
      while (list) {  // the list has the newest first, so reverse it
        FiberRecord* next = list->run.queue_next;
        list->run.queue_next = front_;
        front_ = list;
        list = next;
      }
    }
    FiberRecord* f = front_;
    if (f) front_ = f->run.queue_next;
    has_front_.store(front_ != nullptr, std::memory_order_relaxed);
    consumer_.unlock();
    return f;
  }

  bool empty() const { return !head_.load(std::memory_order_acquire) && !has_front_.load(std::memory_order_relaxed); }
  void reset() {
    head_.store(nullptr, std::memory_order_relaxed);
    front_ = nullptr;
    has_front_.store(false, std::memory_order_relaxed);
    consumer_.reset();
  }

 private:
  alignas(64) std::atomic<FiberRecord*> head_{nullptr};
  alignas(64) SpinLock consumer_;
  std::atomic<bool> has_front_{false};
  FiberRecord* front_ = nullptr;
};

// Unbounded, any number of producers and consumers.
class GlobalQueue {
 public:
  void push(FiberRecord* f) {
    SpinGuard guard(lock_);
    f->run.queue_next = nullptr;
    if (tail_) tail_->run.queue_next = f;
    else head_ = f;
    tail_ = f;
    size_.store(size_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  void push_front(FiberRecord* f) {
    SpinGuard guard(lock_);
    f->run.queue_next = head_;
    head_ = f;
    if (!tail_) tail_ = f;
    size_.store(size_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  FiberRecord* pop() {
    if (empty()) return nullptr;
    SpinGuard guard(lock_);
    return head_ ? unlink(nullptr, head_) : nullptr;
  }
  // Takes the oldest that suits. Null if none does.
  template <class Suits>
  FiberRecord* take_if(Suits suits) {
    SpinGuard guard(lock_);
    FiberRecord *before = nullptr, *f = head_;
    for (; f && !suits(f); f = f->run.queue_next) before = f;
    return f ? unlink(before, f) : nullptr;
  }
  // Takes out the entry with this number, counted from the oldest. Null if there are fewer.
  FiberRecord* take(uint32_t number) {
    return take_if([&](const FiberRecord*) { return number-- == 0; });
  }
  FiberRecord* first() const { return head_; }  // its successors are in run.queue_next. Only while nobody else uses the queue
  bool empty() const { return size_.load(std::memory_order_acquire) == 0; }
  uint32_t size() const { return size_.load(std::memory_order_relaxed); }
  void reset() {
    lock_.reset();
    head_ = tail_ = nullptr;
    size_.store(0, std::memory_order_relaxed);
  }

 private:
  // lock_ is held. `before` is the entry before f; null: f is the oldest.
  FiberRecord* unlink(FiberRecord* before, FiberRecord* f) {
    (before ? before->run.queue_next : head_) = f->run.queue_next;
    if (tail_ == f) tail_ = before;
    size_.store(size_.load(std::memory_order_relaxed) - 1, std::memory_order_release);
    return f;
  }

  alignas(64) SpinLock lock_;
  FiberRecord* head_ = nullptr;
  FiberRecord* tail_ = nullptr;
  std::atomic<uint32_t> size_{0};
};

}  // namespace fiberthread
