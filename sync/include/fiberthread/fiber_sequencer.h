// SPDX-License-Identifier: MIT
// FiberSequencer: a counter that only grows, and waits until it has reached a number, which can be given up.
//
// Cost: increment() without waiters is one compare-and-swap, waiting for what has been reached one load. Else whoever comes puts what
// he wants on a stack and, if nobody does so at the time, does all that is wanted (a combiner: Hendler, Incze, Shavit, Tzafrir, "Flat
// combining", SPAA 2010): O(log n) of the tokens waited for. Nothing is allocated. Wakes in the order of tokens, and of arrival where
// they are equal.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "fiber_future.h"

namespace fiberthread {

// All members: fibers, bound fibers and foreign threads. May be destroyed as soon as a wait that an increment() or advance() has ended
// has returned, even if that call has not, provided that nobody else waits.
class FiberSequencer {
 public:
  static constexpr uint64_t kLast = ~uint64_t{0} >> 5;  // advance() goes no further

  // One wait, and its result: 0 when the count has come, ECANCELED if cancel() was faster. It must live until it is set.
  class Future : public FiberFuture {
   public:
    constexpr Future() = default;
#ifdef FIBERTHREAD_DEBUG_CHECKS
    ~Future() {
      if (sequencer_ && !isSet()) report_misuse("FiberSequencer::Future", this, "is destroyed while it waits");
    }
#endif
    void reset() {
      FiberFuture::reset();
      sequencer_ = nullptr;
    }
    // Gives the wait up, unless the count has come: then false, and if wait() was not called at all. True: the result is ECANCELED.
    // In either case it is set on return, unless somebody else waits for it, or has subscribed, who then is about to learn it. May park
    // for a moment. By the consumer, or by another while the consumer waits.
    FIBERTHREAD_API bool cancel();

   private:
    friend class FiberSequencer;
    friend class FairFiberMutex;
    static constexpr uint32_t kCancelled = 1, kWoken = 2;  // whoever is first of cancel() and the combiner

    FiberSequencer* sequencer_ = nullptr;
    std::atomic<uint32_t> state_{0};
    // The combiner's.
    bool in_table_ = false;
    int result_ = 0;
    uint64_t token_ = 0;
    Future* next_ = nullptr;         // on the stack of requests, then among equal tokens, then among those to be woken
    Future* cancel_next_ = nullptr;  // on the stack of cancels
    Future* prev_ = nullptr;         // among equal tokens; the first one's is the last
    Future* left_ = nullptr;         // the first one is the tree's node
    Future* right_ = nullptr;
  };

  constexpr FiberSequencer() = default;
  FiberSequencer(const FiberSequencer&) = delete;
  FiberSequencer& operator=(const FiberSequencer&) = delete;
#ifdef FIBERTHREAD_DEBUG_CHECKS
  ~FiberSequencer() {
    uint64_t w = word_.exchange(kDestroyedWord, std::memory_order_relaxed);
    if (w == kDestroyedWord) report_misuse("FiberSequencer", this, "is destroyed twice");
    if (w & kWaiters) report_misuse("FiberSequencer", this, "is destroyed while somebody waits");
  }
#endif

  // Acquire: what happened before the calls that have brought it there is seen.
  uint64_t get() const {
    uint64_t w = word_.load(std::memory_order_acquire);
#ifdef FIBERTHREAD_DEBUG_CHECKS
    if (w == kDestroyedWord) report_misuse("FiberSequencer", this, "is used after it was destroyed");
#endif
    return w / kOne;
  }

  // Returns once the count is at least `token`: 0. Or ECANCELED if the caller was cancelled. May park. Not in signal handlers.
  int wait(uint64_t token) { return get() >= token ? 0 : wait_slow(token, kForever); }
  // The same until `deadline_ns` on CLOCK_MONOTONIC, or for `timeout_ns` from now: then ETIMEDOUT.
  int waitUntil(uint64_t token, uint64_t deadline_ns) { return get() >= token ? 0 : wait_slow(token, deadline_ns); }
  FIBERTHREAD_API int waitWithTimeout(uint64_t token, uint64_t timeout_ns);
  // Has `future` set once the count is at least `token`, and returns at once. One that was set before is reset first. Never parks.
  FIBERTHREAD_API void wait(uint64_t token, Future* future);

  // Counts one up, wakes those whose token has been reached, and returns the new count. Never parks; also in signal handlers.
  uint64_t increment() {
    uint64_t w = word_.load(std::memory_order_relaxed);
    while (!(w & (kBusy | kWaiters)))
      if (word_.compare_exchange_weak(w, w + kOne, std::memory_order_release, std::memory_order_relaxed)) return w / kOne + 1;
    return raise(0, 1);
  }
  // The same up to `value` at least. One that has been reached changes nothing. Returns the count, `value` or more.
  uint64_t advance(uint64_t value) { return raise(value, 0); }

 private:
  friend class FairFiberMutex;

  // {count: 60, tickets, waiters, pending, busy}. One word, so that each step that raises the count is also the last touch of who
  // does not combine. The combiner is FREE (0), BUSY, or BUSY and PENDING: what others wanted meanwhile is on the stacks, and it
  // must look again. `waiters`: the table is not empty, or was not when it was last looked at. `tickets`: see FairFiberMutex.
  static constexpr uint64_t kBusy = 1, kPending = 2, kWaiters = 4, kTickets = 8, kOne = 16;
  explicit constexpr FiberSequencer(uint64_t word) : word_(word) {}

  FIBERTHREAD_API int wait_slow(uint64_t token, uint64_t deadline_ns);
  FIBERTHREAD_API uint64_t raise(uint64_t at_least, uint64_t by);
  int wait_for(uint64_t token, uint64_t deadline_ns, uint32_t interrupts, const char* what);
  static void make_ready(Future& f);
  void request(Future& f, uint64_t token);
  bool cancel(Future& f);
  void kick();
  void combine(uint64_t w);
  void insert(Future& f);
  void remove(Future& f);
  Future* take_up_to(uint64_t count);
  Future* take_first();

  std::atomic<uint64_t> word_{0};
  std::atomic<Future*> requests_{nullptr}, cancels_{nullptr};
  // The combiner's: the table of who waits, a treap (Seidel, Aragon, FOCS 1989) by token, and the last ticket that was given out.
  Future* root_ = nullptr;
  uint64_t tickets_ = 0;
};

}  // namespace fiberthread
