// SPDX-License-Identifier: MIT
// select: the caller locks all channels of the cases, in the order of their addresses. Under these locks it finds that no case can happen,
// and queues the waiter for each case. No other thread can decide for the waiter before that, so nothing must be taken back. Once a case is
// queued at a channel, the channel stays as it is (channel_core.h). So there is one moment at which no case could happen.
#include "sched/arch/arch.h"
#include "sched/chaos.h"
#include "sched/observe/observe.h"
#include "sync/channel_core.h"
#include "sync/parking_lot.h"
#include "sched/wait.h"

namespace fiberthread {
namespace {

using Inside = SelectInside;

// The cases in the order of their channels' addresses. Cases of one channel follow each other.
class Ordered {
 public:
  void insert(SelectCase& c) {
    SelectCase** link = &first_;
    // Cases are often made in the order of their channels.
    if (last_ && !before(c, *last_)) link = &Inside::next_locked(*last_);
    while (*link && !before(c, **link)) link = &Inside::next_locked(**link);
    Inside::next_locked(c) = *link;
    *link = &c;
    if (!Inside::next_locked(c)) last_ = &c;
  }
  bool empty() const { return !first_; }
  template <class F>
  void each(F f) {
    for (SelectCase* c = first_; c; c = Inside::next_locked(*c)) f(*c);
  }
  void lock() {
    each([](SelectCase& c) {
      if (is_last_of_channel(c)) Inside::channel(c)->lock.lock();
    });
  }
  void unlock() {
    each([](SelectCase& c) {
      if (is_last_of_channel(c)) Inside::channel(c)->lock.unlock();
    });
  }
  // Dequeues the cases before `end` (null: all). Locked.
  void dequeue(SelectCase* end) {
    for (SelectCase* c = first_; c != end; c = Inside::next_locked(*c)) Inside::channel(*c)->dequeue(*c);
  }
  // Queues all cases. Returns false if a case may happen now; then none is queued. Locked.
  bool queue() {
    for (SelectCase* c = first_; c; c = Inside::next_locked(*c))
      if (!Inside::channel(*c)->queue(*c)) {
        dequeue(c);
        return false;
      }
    return true;
  }

 private:
  static bool before(const SelectCase& a, const SelectCase& b) {
    return reinterpret_cast<uintptr_t>(Inside::channel(a)) < reinterpret_cast<uintptr_t>(Inside::channel(b));
  }
  static bool is_last_of_channel(SelectCase& c) {
    SelectCase* next = Inside::next_locked(c);
    return !next || Inside::channel(*next) != Inside::channel(c);
  }
  SelectCase* first_ = nullptr;
  SelectCase* last_ = nullptr;
};

// The cases in the caller's order.
class Choice {
 public:
  Choice(SelectCase* const* cases, size_t n) : cases_(cases), n_(n), random_(cycles() ^ reinterpret_cast<uintptr_t>(this)) {}

  // Does a case that can happen at once, which needs no lock but its own channel's. Stores its error in `e`, and returns its index, or -1.
  int32_t take_ready(int& e) {
    size_t start = some_ready();
    if (start == n_) return -1;
    return in_turn(start, [&](SelectCase& c) {
      if (!Inside::looks_ready(c)) return false;
      Busy busy;
      Woken woken;
      {
        SpinGuard g(Inside::channel(c)->lock);
        e = Inside::attempt(c, woken);
      }
      woken.wake_all();
      return e != EAGAIN;
    });
  }
  // Does the same under the locks of all channels. If no case looks ready, it tries them from the first one on.
  int32_t take_locked(int& e, Woken& woken) {
    return in_turn(n_ ? some_ready() % n_ : 0, [&](SelectCase& c) {
      chaos_delay();
      return (e = Inside::attempt(c, woken)) != EAGAIN;
    });
  }

 private:
  // Returns a case that looks ready, each of them equally often, or n_ if none does. If the turn began anywhere, a case behind many that
  // are not ready would happen more often than others.
  size_t some_ready() {
    size_t found = n_, ready = 0;
    for (size_t i = 0; i < n_; i++)
      if (Inside::channel(*cases_[i]) && Inside::looks_ready(*cases_[i]) && (ready++ == 0 || one_in(ready))) found = i;
    return found;
  }
  // Tries the cases from `start` on until one happens.
  template <class Attempt>
  int32_t in_turn(size_t start, Attempt attempt) {
    for (size_t k = 0, i = start; k < n_; k++, i = i + 1 == n_ ? 0 : i + 1)
      if (Inside::channel(*cases_[i]) && attempt(*cases_[i])) return static_cast<int32_t>(i);
    return -1;
  }
  // Returns true once in n calls, n < 2^32: time, mixed as in SplitMix64 (Steele, Lea, Flood 2014). A single multiplication is not enough:
  // a loop of even steps then prefers some cases.
  bool one_in(size_t n) {
    uint64_t x = random_ += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (x >> 32) * n >> 32 == 0;
  }

  SelectCase* const* cases_;
  size_t n_;
  uint64_t random_;
};

}  // namespace

Selected select_cases(SelectCase* const* cases, size_t n, uint64_t deadline) {
  ChannelWait wait;
  Ordered ordered;
  for (size_t i = 0; i < n; i++) {
    Inside::begin(*cases[i], &wait, static_cast<int32_t>(i));
    if (Inside::channel(*cases[i])) ordered.insert(*cases[i]);
  }
  if (ordered.empty() && deadline == kForever) return {-1, EINVAL};
  auto happened = [&](int32_t i, int error) -> Selected {
    if (observed(kObserveSelect)) debug_line("select", wait.fiber, error ? "finds closed: case " : "takes case ", static_cast<uint64_t>(i));
    Inside::finish(*cases[i], error);
    return {i, error};
  };

  int e = EAGAIN;
  Choice choice(cases, n);
  int32_t i = choice.take_ready(e);
  if (i >= 0) return happened(i, e);

  {
    Busy busy;
    Woken woken;
    ordered.lock();
    do i = choice.take_locked(e, woken);
    while (i < 0 && !ordered.queue());
    if (i < 0) {
      if (deadline) wait.fiber->wait.pins++;
      else ordered.dequeue(nullptr);
    }
    ordered.unlock();
    woken.wake_all();
    if (i < 0 && !deadline) return {-1, EAGAIN};
  }
  if (i >= 0) return happened(i, e);

  if (observed(kObserveSelect)) debug_line("select", wait.fiber, "waits; cases: ", uint64_t{n});
  auto leave = [&] {
    Busy busy;
    ordered.each([](SelectCase& c) {
      chaos_delay();
      SpinGuard g(Inside::channel(c)->lock);
      Inside::channel(c)->dequeue(c);
    });
  };
  auto withdraw = [&] {
    if (!wait.decide(ChannelWait::kGaveUp)) return false;
    leave();
    return true;
  };
  WakeReason why = wait_signaled(wait.fiber, wait.signaled, {"select", &wait}, plain_deadline(deadline), kInterruptEnd, withdraw, leave);
  if (why != WakeReason::Woken) {
    bool late = why == WakeReason::TimedOut;
    if (observed(kObserveSelect)) debug_line("select", wait.fiber, late ? "has waited long enough" : "was cancelled");
    return {-1, late ? ETIMEDOUT : ECANCELED};
  }
  i = wait.selected.load(std::memory_order_relaxed);
  return happened(i, wait.error);
}

}  // namespace fiberthread
