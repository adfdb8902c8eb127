// SPDX-License-Identifier: MIT
#include "fiberthread/channel.h"

#include <stdlib.h>

#include <initializer_list>

#include "sched/chaos.h"
#include "sched/life/fork.h"
#include "sched/observe/deadlock.h"
#include "sched/observe/report.h"
#include "sched/observe/observe.h"
#include "sync/channel_core.h"
#include "sync/checks.h"
#include "sync/parking_lot.h"
#include "sched/wait.h"

namespace fiberthread {

bool channel_lock_free = true;

namespace {

// All channels, for the deadlock report. No other lock is taken under this one.
constinit SpinLock all_lock;
constinit ChannelCore* all = nullptr;
constinit unsigned forks = 0;  // number of forks from the first process to this one; channels made before the last fork are in no list

DeadlockPart channels_part{ChannelCore::tell_all};
[[gnu::constructor]] void register_part() { deadlock_tell_by(channels_part); }

}  // namespace

void Woken::wake_all() {
  for (ChannelWait* w = first_; w;) {
    // After the mark the wait may be gone at once.
    ChannelWait* next = w->next_woken;
    FiberRecord* f = w->fiber;
    chaos_delay();
    w->signaled.store(1, std::memory_order_release);
    unpark(f);
    w = next;
  }
}

void CaseList::push_back(SelectCase& c) {
  c.next_ = nullptr;
  c.prev_ = last_;
  (last_ ? last_->next_ : first_) = &c;
  last_ = &c;
  c.queued_ = true;
}

void CaseList::remove(SelectCase& c) {
  (c.prev_ ? c.prev_->next_ : first_) = c.next_;
  (c.next_ ? c.next_->prev_ : last_) = c.prev_;
  c.queued_ = false;
}

size_t CaseList::size() const {
  size_t n = 0;
  for (SelectCase* c = first_; c; c = c->next_) n++;
  return n;
}

// ---- all channels ----

void ChannelCore::tell_all(Output& out) {
  constexpr size_t kMost = 100;
  SpinGuard g(all_lock);  // no fiber runs, so no thread holds it
  size_t n = 0;
  for (bool awaited : {true, false})
    for (ChannelCore* c = all; c; c = c->next_) {
      size_t senders = c->senders_.size(), receivers = c->receivers_.size();
      if (awaited != (senders || receivers)) continue;
      if (n++ >= kMost) continue;
      out.begin() << "channel " << static_cast<const void*>(c) << ": capacity " << c->capacity_ << ", " << c->size()
                  << (c->is_closed() ? " in it, closed, " : " in it, ") << senders << " waiting to send, " << receivers << " to receive\n";
    }
  if (n > kMost) out.begin() << "… and " << n - kMost << " more channels\n";
}

// ---- the ring ----

ChannelCore* ChannelCore::make(size_t capacity, size_t value_size, void (*drop)(void*)) {
  size_t cells = 0, cell_size = (kCellHeader + value_size + 7) & ~size_t{7};
  if (capacity) {
    if (capacity > (size_t{1} << 48) / cell_size) return nullptr;
    cells = 2;  // with one cell, "filled" and "free for the next" would be the same turn
    while (cells < capacity) cells *= 2;
  }
  size_t size = (sizeof(ChannelCore) + cells * cell_size + 63) & ~size_t{63};
  auto* c = static_cast<ChannelCore*>(aligned_alloc(64, size));
  if (!c) return nullptr;
  new (c) ChannelCore;
  uint64_t flags = capacity && channel_lock_free ? 0 : kLocked;
  c->tail_.store(flags, std::memory_order_relaxed);
  c->head_.store(flags, std::memory_order_relaxed);
  c->capacity_ = capacity;
  c->mask_ = cells - 1;
  c->exact_ = cells == capacity;
  c->value_size_ = value_size;
  c->cell_size_ = cell_size;
  c->drop_ = drop;
  c->cells_ = reinterpret_cast<unsigned char*>(c + 1);
  for (size_t i = 0; i < cells; i++) c->cell(i).turn.store(i, std::memory_order_relaxed);
  Busy busy;
  SpinGuard g(all_lock);
  c->made_in_ = forks;
  c->next_ = all;
  c->link_ = &all;
  if (all) all->link_ = &c->next_;
  all = c;
  return c;
}

void ChannelCore::copy(void* to, const void* from) {
  // The common sizes need no call.
  if (value_size_ == 8) memcpy(to, from, 8);
  else if (value_size_ == 4) memcpy(to, from, 4);
  else memcpy(to, from, value_size_);
}

// Fills the cell of a position that is ours. The thread that had the cell before may still be at it.
void ChannelCore::fill(uint64_t p, const void* value) {
  Cell& c = cell(p);
  chaos_delay();
  for (int i = 0; c.turn.load(std::memory_order_acquire) != p; i++) SpinLock::pause(i);
  copy(c.value(), value);
  c.turn.store(p + 1, std::memory_order_release);
}

void ChannelCore::empty(uint64_t p, void* value) {
  Cell& c = cell(p);
  chaos_delay();
  for (int i = 0; c.turn.load(std::memory_order_acquire) != p + 1; i++) SpinLock::pause(i);
  copy(value, c.value());
  c.turn.store(p + mask_ + 1, std::memory_order_release);
}

// Relaxed compare-and-swaps: a counter only says which thread has a position. The cell's turn publishes the value.
bool ChannelCore::send_fast(const void* value) {
  uint64_t t = tail_.load(std::memory_order_relaxed);
  while (!(t & kFlags)) {
    uint64_t p = position(t);
    uint64_t turn = cell(p).turn.load(std::memory_order_acquire);
    if (turn == p) {
      if (!exact_ && p - position(head_.load(std::memory_order_acquire)) >= capacity_) return false;
      chaos_delay();
      if (!tail_.compare_exchange_weak(t, t + kOne, std::memory_order_relaxed)) continue;
      fill(p, value);
      return true;
    }
    if (turn < p) return false;  // full, or nearly
    t = tail_.load(std::memory_order_relaxed);
  }
  return false;
}

bool ChannelCore::receive_fast(void* value) {
  uint64_t h = head_.load(std::memory_order_relaxed);
  while (!(h & kFlags)) {
    uint64_t p = position(h);
    uint64_t turn = cell(p).turn.load(std::memory_order_acquire);
    if (turn == p + 1) {
      chaos_delay();
      if (!head_.compare_exchange_weak(h, h + kOne, std::memory_order_relaxed)) continue;
      empty(p, value);
      return true;
    }
    if (turn < p + 1) return false;  // empty, or nearly
    h = head_.load(std::memory_order_relaxed);
  }
  return false;
}

// Under the lock, but other threads may still be on the lock-free path. Returns false if the ring is full.
bool ChannelCore::push(const void* value) {
  if (!capacity_) return false;
  // tail before head: in the other order the ring might seem fuller than it ever was.
  uint64_t t = tail_.load(std::memory_order_acquire);
  for (;;) {
    uint64_t used = position(t) - position(head_.load(std::memory_order_acquire));
    if (static_cast<int64_t>(used) >= static_cast<int64_t>(capacity_)) return false;
    if (tail_.compare_exchange_weak(t, t + kOne, std::memory_order_acquire)) break;
  }
  fill(position(t), value);
  return true;
}

// Other threads may have changed the list while the kernel copied its pages one after the other. So its contents cannot be relied on,
// whether the lock is free or not. The report leaves out the channels of that list. The child may free them all the same.
void ChannelCore::reset_after_fork() {
  if (!all) return all_lock.reset();  // the page stays the parent's
  all_lock.reset();
  all = nullptr;
  forks++;
}

FIBERTHREAD_IN_FORK_CHILD(Waits, channels, [](FiberRecord*) { ChannelCore::reset_after_fork(); })

// ---- under the lock ----

void ChannelCore::set(std::atomic<uint64_t>& word, uint64_t flags) {
  // Without a ring, the words change only under the lock.
  if (capacity_) word.fetch_or(flags, std::memory_order_acq_rel);
  else word.store(word.load(std::memory_order_relaxed) | flags, std::memory_order_release);
}

// Clears the flag of a list that is empty now.
void ChannelCore::clear_flags(const CaseList& list) {
  if (!list.empty()) return;
  auto clear = [this](std::atomic<uint64_t>& word, uint64_t flag) {
    if (capacity_) word.fetch_and(~flag, std::memory_order_acq_rel);
    else word.store(word.load(std::memory_order_relaxed) & ~flag, std::memory_order_release);
  };
  if (&list == &receivers_) {
    clear(tail_, kReceiversWait);
  } else {
    clear(tail_, kSendersWait);
    clear(head_, kSendersWait);
  }
}

// Takes out the first case that is still undecided, and decides it: for 0 or `error`. The other cases have happened elsewhere, or were
// given up.
SelectCase* ChannelCore::pop(CaseList& list, int error, Woken& woken) {
  while (SelectCase* c = list.first()) {
    list.remove(*c);
    chaos_delay();
    if (!c->wait_->decide(c->index_)) continue;
    c->wait_->error = error;
    woken.add(*c->wait_);
    return c;
  }
  return nullptr;
}

int ChannelCore::send_locked(const void* value, Woken& woken) {
  uint64_t t = tail_.load(std::memory_order_relaxed);
  if (t & kClosed) return EPIPE;
  if (t & kReceiversWait) {
    SelectCase* r = pop(receivers_, 0, woken);
    if (r) copy(r->value_, value);
    clear_flags(receivers_);
    if (r) return 0;
  }
  return push(value) ? 0 : EAGAIN;
}

int ChannelCore::receive_locked(void* value, Woken& woken) {
  // head before tail: in the other order the ring might seem emptier than it ever was.
  uint64_t h = head_.load(std::memory_order_acquire);
  while (position(tail_.load(std::memory_order_acquire)) != position(h)) {
    if (!head_.compare_exchange_weak(h, h + kOne, std::memory_order_acquire)) continue;
    empty(position(h), value);
    if (h & kSendersWait) {
      // The flags are cleared after the push. Until then no other thread can take the free place.
      if (SelectCase* s = pop(senders_, 0, woken)) push(s->value_);
      clear_flags(senders_);
    }
    return 0;
  }
  if (h & kSendersWait) {  // without a ring
    SelectCase* s = pop(senders_, 0, woken);
    if (s) copy(value, s->value_);
    clear_flags(senders_);
    if (s) return 0;
  }
  return tail_.load(std::memory_order_acquire) & kClosed ? EPIPE : EAGAIN;
}

bool ChannelCore::queue(SelectCase& c) {
  CaseList& list = c.sends_ ? senders_ : receivers_;
  if (list.empty()) {
    // From then on no sender goes past the flag, and so no receiver gets more than there is.
    set(tail_, c.sends_ ? kSendersWait : kReceiversWait);
    chaos_delay();
    if (c.sends_) set(head_, kSendersWait);
    uint64_t t = position(tail_.load(std::memory_order_acquire)), h = position(head_.load(std::memory_order_acquire));
    if (capacity_ && (c.sends_ ? t - h < capacity_ : t != h)) {
      clear_flags(list);
      return false;
    }
  }
  list.push_back(c);
  return true;
}

void ChannelCore::dequeue(SelectCase& c) {
  if (!c.queued_) return;
  CaseList& list = c.sends_ ? senders_ : receivers_;
  list.remove(c);
  clear_flags(list);
}

void ChannelCore::close(Woken& woken) {
  set(tail_, kClosed);
  // Waiting receivers wait because there is no value, and waiting senders keep theirs.
  for (CaseList* list : {&receivers_, &senders_}) {
    while (pop(*list, EPIPE, woken)) {
    }
    clear_flags(*list);
  }
}

// ---- without the lock ----

bool ChannelCore::looks_ready(bool sends) const {
  uint64_t h = head_.load(std::memory_order_relaxed), t = tail_.load(std::memory_order_relaxed);
  uint64_t used = position(t) - position(h);
  if (t & kClosed) return true;
  return sends ? t & kReceiversWait || used < capacity_ : h & kSendersWait || used;
}

size_t ChannelCore::size() const {
  uint64_t h = position(head_.load(std::memory_order_acquire)), t = position(tail_.load(std::memory_order_acquire));
  return t - h > capacity_ ? capacity_ : t - h;
}

void ChannelCore::drop_all() {
  alignas(8) unsigned char value[64];
  for (;;) {
    {
      Busy busy;
      Woken nobody;  // all senders have been woken by close()
      SpinGuard g(lock);
      if (receive_locked(value, nobody)) return;
    }
    if (drop_) drop_(value);
  }
}

void ChannelCore::release(bool sender) {
  if ((sender ? senders_held_ : receivers_held_).fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  channel_close(this);
  // Sends fail from now on. Sends in flight still arrive.
  if (!sender) drop_all();
  if (sides_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  check(receivers_.empty() && senders_.empty(), "Channel", this, "is destroyed while somebody waits");
  if (kDebugChecks) value_size_ = kDestroyedWord;
  {
    Busy busy;
    SpinGuard g(all_lock);
    if (made_in_ == forks) {
      *link_ = next_;
      if (next_) next_->link_ = link_;
    }
  }
  free(this);
}

namespace {

int wait_for(ChannelCore& channel, bool sends, void* value, uint64_t deadline) {
  struct One : SelectCase {
    One(ChannelCore* c, void* value, bool sends, ChannelWait* wait) : SelectCase(c, sends, nullptr) {
      value_ = value;
      SelectInside::begin(*this, wait, 0);
    }
  };
  ChannelWait wait;
  One one(&channel, value, sends, &wait);
  {
    Busy busy;
    Woken woken;
    int e;
    {
      SpinGuard g(channel.lock);
      do e = channel.try_case(sends, value, woken);
      while (e == EAGAIN && deadline && !channel.queue(one));
      if (e == EAGAIN && deadline) wait.fiber->wait.pins++;
    }
    woken.wake_all();
    if (e != EAGAIN || !deadline) return e;
  }
  if (observed(kObserveChannel)) debug_line("channel", wait.fiber, sends ? "waits to send to" : "waits to receive from", "", &channel);
  auto withdraw = [&] {
    if (!wait.decide(ChannelWait::kGaveUp)) return false;
    Busy busy;
    chaos_delay();
    SpinGuard g(channel.lock);
    channel.dequeue(one);
    return true;
  };
  WakeReason why = wait_signaled(wait.fiber, wait.signaled, {sends ? "channel (send)" : "channel (receive)", &channel},
                                 plain_deadline(deadline), kInterruptEnd, withdraw);
  int e = why == WakeReason::Woken ? wait.error : why == WakeReason::TimedOut ? ETIMEDOUT : ECANCELED;
  if (observed(kObserveChannel))
    debug_line("channel", wait.fiber, sends ? "waited to send, and " : "waited to receive, and ",
               e == EPIPE       ? "found closed"
               : e == ETIMEDOUT ? "gave up"
               : e == ECANCELED ? "was cancelled at"
               : sends          ? "sent to"
                                : "received from",
               &channel);
  return e;
}

}  // namespace

ChannelCore* channel_make(size_t capacity, size_t value_size, void (*drop)(void*)) { return ChannelCore::make(capacity, value_size, drop); }

void channel_hold(ChannelCore* c, bool sender) { c->hold(sender); }

void channel_release(ChannelCore* c, bool sender) { c->release(sender); }

int channel_send(ChannelCore* c, const void* value, uint64_t deadline_ns) {
  {
    Busy busy;
    if (__builtin_expect(c->send_fast(value), 1)) return 0;
  }
  return wait_for(*c, true, const_cast<void*>(value), deadline_ns);
}

int channel_receive(ChannelCore* c, void* value, uint64_t deadline_ns) {
  {
    Busy busy;
    if (__builtin_expect(c->receive_fast(value), 1)) return 0;
  }
  return wait_for(*c, false, value, deadline_ns);
}

void channel_close(ChannelCore* c) {
  if (observed(kObserveChannel)) debug_line("channel", tls_current, "closes", "", c);
  Busy busy;
  Woken woken;
  {
    SpinGuard g(c->lock);
    c->close(woken);
  }
  woken.wake_all();
}

bool channel_is_closed(const ChannelCore* c) { return c->is_closed(); }
size_t channel_size(const ChannelCore* c) { return c->size(); }
size_t channel_capacity(const ChannelCore* c) { return c->capacity(); }

}  // namespace fiberthread
