// SPDX-License-Identifier: MIT
#include "fiberthread/fiber_sequencer.h"

#include <errno.h>

#include "sched/chaos.h"
#include "sched/fiber.h"
#include "fiberthread/deadline.h"
#include "sched/wait.h"

namespace fiberthread {
namespace {

// Returns the priority of a node in the treap. It is as good as random, and needs no memory. Futures with one token are in one node and
// have one priority.
uint64_t priority(uint64_t token) {
  uint64_t x = (token ^ token >> 31) * 0x9E3779B97F4A7C15u;
  return (x ^ x >> 29) * 0xBF58476D1CE4E5B9u;
}

}  // namespace

// ---- the table: the combiner's alone ----

void FiberSequencer::insert(Future& f) {
  f.in_table_ = true;
  f.next_ = f.left_ = f.right_ = nullptr;
  f.prev_ = &f;
  Future** place = nullptr;  // the place of f by its priority, unless its token is further down
  Future** link = &root_;
  for (; *link && (*link)->token_ != f.token_; link = f.token_ < (*link)->token_ ? &(*link)->left_ : &(*link)->right_)
    if (!place && priority((*link)->token_) < priority(f.token_)) place = link;
  if (Future* first = *link) {
    f.prev_ = first->prev_;
    first->prev_->next_ = &f;
    first->prev_ = &f;
    return;
  }
  if (!place) place = link;
  Future* below = *place;
  *place = &f;
  // The subtree that was there is split at f's token.
  Future **less = &f.left_, **more = &f.right_;
  while (below) {
    if (below->token_ < f.token_) {
      *less = below;
      less = &below->right_;
      below = below->right_;
    } else {
      *more = below;
      more = &below->left_;
      below = below->left_;
    }
  }
  *less = *more = nullptr;
}

void FiberSequencer::remove(Future& f) {
  f.in_table_ = false;
  Future** link = &root_;
  while ((*link)->token_ != f.token_) link = f.token_ < (*link)->token_ ? &(*link)->left_ : &(*link)->right_;
  Future* first = *link;
  if (first != &f) {
    f.prev_->next_ = f.next_;
    (f.next_ ? f.next_ : first)->prev_ = f.prev_;
    return;
  }
  if (Future* second = f.next_) {
    // The second future takes the node's place.
    second->prev_ = f.prev_;
    second->left_ = f.left_;
    second->right_ = f.right_;
    *link = second;
    return;
  }
  Future *a = f.left_, *b = f.right_;
  while (a && b) {
    if (priority(a->token_) > priority(b->token_)) {
      *link = a;
      link = &a->right_;
      a = a->right_;
    } else {
      *link = b;
      link = &b->left_;
      b = b->left_;
    }
  }
  *link = a ? a : b;
}

// Takes out all tokens up to `count`. Returns them as a list in their order.
FiberSequencer::Future* FiberSequencer::take_up_to(uint64_t count) {
  Future *node = root_, *taken = nullptr;
  Future **less = &taken, **more = &root_;
  while (node) {
    if (node->token_ <= count) {
      *less = node;
      less = &node->right_;
      node = node->right_;
    } else {
      *more = node;
      more = &node->left_;
      node = node->left_;
    }
  }
  *less = *more = nullptr;
  Future *list = nullptr, **tail = &list;
  while (taken) {
    if (Future* l = taken->left_) {  // smaller tokens come first
      taken->left_ = l->right_;
      l->right_ = taken;
      taken = l;
    } else {
      Future* next = taken->right_;
      *tail = taken;
      tail = &taken->prev_->next_;
      taken = next;
    }
  }
  return list;
}

FiberSequencer::Future* FiberSequencer::take_first() {
  Future* f = root_;
  while (f && f->left_) f = f->left_;
  if (f) remove(*f);
  return f;
}

// ---- the combiner ----

// Sees to it that the stacks are looked at, by the caller or by the present combiner.
void FiberSequencer::kick() {
  uint64_t w = word_.load(std::memory_order_relaxed), next;
  do {
    chaos_delay();
    if (w == kDestroyedWord) report_misuse("FiberSequencer", this, "is waited for after it was destroyed");
    next = w | (w & kBusy ? kPending : kBusy);
    // The CAS happens even if it changes nothing, because it sees the latest value. So a combiner whose PENDING bit is set has not looked
    // yet, and will find our push.
  } while (!word_.compare_exchange_weak(w, next, std::memory_order_acq_rel, std::memory_order_relaxed));
  if (!(w & kBusy)) combine(next);
}

// Combines. The caller has made the word `w`, with kBusy. It is Busy, because other threads rely on the combiner to come to an end.
void FiberSequencer::combine(uint64_t w) {
  Future *wake = nullptr, **tail = &wake;
  auto settle = [&](Future* f, int result) {
    f->result_ = result;
    f->next_ = nullptr;
    *tail = f;
    tail = &f->next_;
  };
  for (;;) {
    chaos_delay();
    Future* cancels = cancels_.exchange(nullptr, std::memory_order_acquire);
    Future *requests = requests_.exchange(nullptr, std::memory_order_acquire), *in_order = nullptr;
    while (Future* f = requests) {
      requests = f->next_;
      f->next_ = in_order;
      in_order = f;
    }
    while (Future* f = in_order) {
      in_order = f->next_;
      // The future's entry among the cancels, which is here or on its way, completes it. So a future on that stack is not woken by another
      // path, and cannot be gone.
      if (f->state_.load(std::memory_order_relaxed) & Future::kCancelled) continue;
      if (w & kTickets) f->token_ = ++tickets_;
      insert(*f);
    }
    while (Future* f = cancels) {
      cancels = f->cancel_next_;
      if (f->in_table_) remove(*f);
      f->state_.fetch_or(Future::kWoken, std::memory_order_relaxed);
      settle(f, ECANCELED);
    }
    // Relaxed: only the bit itself is passed on.
    auto is_ours = [](Future* f) { return !(f->state_.fetch_or(Future::kWoken, std::memory_order_relaxed) & Future::kCancelled); };
    if (w & kTickets) {
      // The mutex is free and a thread waits: the first ticket gets it. No other thread can take it while we are busy.
      while (root_ && !(w & kOne)) {
        Future* f = take_first();
        if (!is_ours(f)) continue;
        settle(f, 0);
        w = word_.fetch_add(kOne, std::memory_order_acq_rel) + kOne;
      }
    } else if (root_) {
      for (Future *f = take_up_to(w / kOne), *next; f; f = next) {
        next = f->next_;
        f->in_table_ = false;
        if (is_ours(f)) settle(f, 0);
      }
    }
    chaos_delay();
    // Release and acquire: the next combiner sees the table, our writes to its nodes, and what the threads that counted up did before.
    uint64_t next = (w & ~(kBusy | kWaiters)) | (root_ ? kWaiters : 0);
    if (!(w & kPending) && word_.compare_exchange_strong(w, next, std::memory_order_acq_rel, std::memory_order_relaxed)) break;
    w = word_.fetch_and(~kPending, std::memory_order_acq_rel) & ~kPending;
  }
  // From here on this object may be gone, and each future once it is set.
  while (Future* f = wake) {
    wake = f->next_;
    chaos_delay();
    f->set(f->result_);
  }
}

// ---- members for callers ----

uint64_t FiberSequencer::raise(uint64_t at_least, uint64_t by) {
  Busy busy;
  uint64_t w = word_.load(std::memory_order_relaxed), next, count;
  do {
    if (w == kDestroyedWord) report_misuse("FiberSequencer", this, "is counted up after it was destroyed");
    chaos_delay();
    count = w / kOne + by;
    if (count < at_least) count = at_least < kLast ? at_least : kLast;  // increments still have room beyond kLast
    if (count == w / kOne) return count;
    // Our duty to combine is set in the same step, since other threads may act on the new count at once.
    next = count * kOne | (w & (kOne - 1));
    if (w & kBusy) next |= kPending;
    else if (w & kWaiters) next |= kBusy;
  } while (!word_.compare_exchange_weak(w, next, std::memory_order_acq_rel, std::memory_order_relaxed));
  if (!(w & kBusy) && next & kBusy) combine(next);
  return count;
}

// Makes f a future that has not been set, and that waits for nothing.
void FiberSequencer::make_ready(Future& f) {
  if (f.sequencer_ && !(f.state_.load(std::memory_order_relaxed) & Future::kWoken))
    report_misuse("FiberSequencer::Future", &f, "is given to a second wait while it waits");
  f.sequencer_ = nullptr;
  if (f.isSet()) f.reset();
}

void FiberSequencer::request(Future& f, uint64_t token) {
  make_ready(f);
  f.sequencer_ = this;
  f.state_.store(0, std::memory_order_relaxed);
  f.in_table_ = false;
  f.token_ = token;
  Busy busy;
  Future* top = requests_.load(std::memory_order_relaxed);
  do {
    f.next_ = top;
    chaos_delay();
  } while (!requests_.compare_exchange_weak(top, &f, std::memory_order_release, std::memory_order_relaxed));
  kick();
}

bool FiberSequencer::cancel(Future& f) {
  Busy busy;  // once the future is marked, it must come to the stack
  uint32_t s = f.state_.load(std::memory_order_relaxed);
  do {
    if (s & Future::kCancelled) return true;
    if (s & Future::kWoken) return false;
  } while (!f.state_.compare_exchange_weak(s, s | Future::kCancelled, std::memory_order_relaxed));
  Future* top = cancels_.load(std::memory_order_relaxed);
  do {
    f.cancel_next_ = top;
    chaos_delay();
  } while (!cancels_.compare_exchange_weak(top, &f, std::memory_order_release, std::memory_order_relaxed));
  kick();
  return true;
}

bool FiberSequencer::Future::cancel() {
  if (!sequencer_) return false;
  if (isSet()) return error() == ECANCELED;
  bool another_waits = word_.load(std::memory_order_relaxed) != 0;
  bool is_cancelled = sequencer_->cancel(*this);
  // A thread that waits may have gone by now, and the future with it. If none waits, the future is ours. Then another thread may be
  // combining. It is on its kernel thread and cannot be preempted, so this wait is short.
  if (!another_waits) wait_for_set(kNever, 0, "sequencer", this);
  return is_cancelled;
}

int FiberSequencer::wait_for(uint64_t token, uint64_t deadline, uint32_t interrupts, const char* what) {
  FiberRecord* me = self();
  me->wait.pins++;  // other threads know `f`, which is on this stack
  Future f;
  request(f, token);
  int e = f.wait_for_set(deadline, interrupts | kInterruptLeave, what, this);
  if (e && !f.cancel()) e = 0;  // the count has come at the same time
  wait_over(me);
  return e;
}

int FiberSequencer::wait_slow(uint64_t token, uint64_t deadline_ns) {
  return wait_for(token, plain_deadline(deadline_ns), kInterruptEnd, "sequencer");
}

int FiberSequencer::waitWithTimeout(uint64_t token, uint64_t timeout_ns) {
  return get() >= token ? 0 : wait_slow(token, deadline_after(timeout_ns));
}

void FiberSequencer::wait(uint64_t token, Future* future) {
  if (get() < token) {
    request(*future, token);
    return;
  }
  make_ready(*future);
  future->set(0);
}

}  // namespace fiberthread
