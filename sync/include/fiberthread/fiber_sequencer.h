// SPDX-License-Identifier: MIT
// FiberSequencer: a counter that only grows. Waits until it has reached a number can be given up.
//
// Cost: increment() without waiters is one compare-and-swap, waiting for a number that has been reached is one load. Otherwise each caller
// pushes its request on a stack. If no thread works on the stacks at that time, the caller does all requests that are there (a combiner:
// Hendler, Incze, Shavit, Tzafrir, "Flat combining", SPAA 2010). That takes O(log n) of the number of tokens waited for. Nothing is
// allocated. Waiters are woken in the order of their tokens, and of arrival where tokens are equal.
#pragma once
#include <atomic>
#include <cstdint>

#include "api.h"
#include "fiber_future.h"

namespace fiberthread {

// Fibers and foreign threads may call all members. A sequencer may be destroyed as soon as a wait that increment() or advance() ended has
// returned, even if that call has not, provided that no other thread waits.
class FiberSequencer {
 public:
  static constexpr uint64_t kLast = ~uint64_t{0} >> 5;  // the limit of advance()

  // One wait and its result: 0 when the count has come, ECANCELED if cancel() was faster. It must live until it is set.
  class Future : public FiberFuture {
   public:
    constexpr Future() = default;
#ifdef FIBERTHREAD_DEBUG_CHECKS
    ~Future() {
      if (sequencer_ && !isSet()) report_misuse("FiberSequencer::Future", this, "is destroyed while it waits");
    }
#endif
    // Makes the future one that has not been set, and that waits for nothing. Consumer only, once it is set. Never parks.
    void reset() {
      FiberFuture::reset();
      sequencer_ = nullptr;
    }
    // Gives the wait up, and returns true. The result is ECANCELED then. Returns false if the count has come, or if wait() was not called
    // at all. In both cases the future is set on return, unless another thread waits for it or has subscribed, and is about to learn the
    // result. The consumer may call it, or another thread while the consumer waits. Fibers and foreign threads. May park for a moment.
    FIBERTHREAD_API bool cancel();

   private:
    friend class FiberSequencer;
    friend class FairFiberMutex;
    static constexpr uint32_t kCancelled = 1, kWoken = 2;  // the first of cancel() and the combiner decides

    FiberSequencer* sequencer_ = nullptr;
    std::atomic<uint32_t> state_{0};
    // Only the combiner uses these.
    bool in_table_ = false;
    int result_ = 0;
    uint64_t token_ = 0;
    Future* next_ = nullptr;         // on the stack of requests, then among equal tokens, then among the futures to wake
    Future* cancel_next_ = nullptr;  // on the stack of cancels
    Future* prev_ = nullptr;         // among equal tokens; that of the first is the last
    Future* left_ = nullptr;         // the first of equal tokens is the node of the tree
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

  // Returns the count. Acquire: the caller sees what happened before the calls that have raised it. Fibers, foreign threads and signal
  // handlers. Never parks.
  uint64_t get() const {
    uint64_t w = word_.load(std::memory_order_acquire);
#ifdef FIBERTHREAD_DEBUG_CHECKS
    if (w == kDestroyedWord) report_misuse("FiberSequencer", this, "is used after it was destroyed");
#endif
    return w / kOne;
  }

  // Waits until the count is at least `token`, and returns 0. ECANCELED: the caller was cancelled. Fibers and foreign threads. May park.
  int wait(uint64_t token) { return get() >= token ? 0 : wait_slow(token, kForever); }
  // Waits until `deadline_ns` on CLOCK_MONOTONIC, or for `timeout_ns` nanoseconds from now, at most: then ETIMEDOUT. Other errors and
  // callers as of wait(token). May park.
  int waitUntil(uint64_t token, uint64_t deadline_ns) { return get() >= token ? 0 : wait_slow(token, deadline_ns); }
  FIBERTHREAD_API int waitWithTimeout(uint64_t token, uint64_t timeout_ns);
  // Has `future` set to 0 once the count is at least `token`, and returns at once. A future that was set before is reset first. Fibers and
  // foreign threads. Never parks.
  FIBERTHREAD_API void wait(uint64_t token, Future* future);

  // Counts one up, wakes the waiters whose token has been reached, and returns the new count. Fibers, foreign threads and signal handlers.
  // Never parks.
  uint64_t increment() {
    uint64_t w = word_.load(std::memory_order_relaxed);
    while (!(w & (kBusy | kWaiters)))
      if (word_.compare_exchange_weak(w, w + kOne, std::memory_order_release, std::memory_order_relaxed)) return w / kOne + 1;
    return raise(0, 1);
  }
  // Counts up to at least `value`, or to kLast if that is less. Changes nothing if the count is there already. Returns the count. Fibers,
  // foreign threads and signal handlers. Never parks.
  uint64_t advance(uint64_t value) { return raise(value, 0); }

 private:
  friend class FairFiberMutex;

  // {count: 60, tickets, waiters, pending, busy}. This is one word, so that each step that raises the count is also the last touch of a
  // caller that does not combine. The combiner is FREE (0), BUSY, or BUSY and PENDING. PENDING means that other threads have pushed
  // requests meanwhile, and that the combiner must look at the stacks again. `waiters`: the table is not empty, or was not when the
  // combiner last looked. `tickets`: see FairFiberMutex.
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
  // Only the combiner uses these: the table of the waiting futures, a treap (Seidel, Aragon, FOCS 1989) by token, and the last ticket that
  // was given out.
  Future* root_ = nullptr;
  uint64_t tickets_ = 0;
};

}  // namespace fiberthread
