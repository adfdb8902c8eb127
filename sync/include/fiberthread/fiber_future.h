// SPDX-License-Identifier: MIT
// FiberFuture: one result, set by one side and waited for by the other.
//
// Cost: set() is one compare-and-swap, and an unpark if a thread waits. Waiting for a future that has been set is one load. Any other wait
// is one compare-and-swap and a park. No memory but the word. Zero-filled memory is a future that has not been set.
#pragma once
#include <errno.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "api.h"
#include "deadline.h"
#include "misuse.h"

namespace fiberthread {

struct FiberRecord;

// The argument of FiberFuture::subscribe(). Derive from it, or make it the first member. It must live until it was called, or until
// unsubscribe() has returned true.
struct SubscribeCallback {
  // Runs in the context of the thread that sets the future, which may be a signal handler. So it must be short and must not wait. The
  // future may be gone by then.
  void (*call)(SubscribeCallback* self, int error);
};

// A future has one producer, which sets it. It has one consumer, which waits, subscribes, resets and destroys. Both may be fibers or
// foreign threads. The consumer may destroy the future as soon as it knows that the future is set, even if set() has not returned yet.
class FiberFuture {
 public:
  constexpr FiberFuture() = default;
  FiberFuture(const FiberFuture&) = delete;
  FiberFuture& operator=(const FiberFuture&) = delete;
#ifdef FIBERTHREAD_DEBUG_CHECKS
  ~FiberFuture() {
    uint64_t w = word_.exchange(kDestroyedWord, std::memory_order_relaxed);
    if (w == kDestroyedWord) report_misuse("FiberFuture", this, "is destroyed twice");
    if (w != 0 && !(w & kSet)) report_misuse("FiberFuture", this, "is destroyed while somebody waits for it");
  }
#endif

  // Gives the result, 0 or an errno value, and wakes the consumer or calls its callback. The first call counts. Later calls change nothing
  // and return false. A thread that finds the future set sees what happened before set(). Fibers, foreign threads and signal handlers.
  // Never parks.
  FIBERTHREAD_API bool set(int error = 0);

  // Returns whether set() was called. Fibers, foreign threads and signal handlers. Never parks.
  bool isSet() const { return word_.load(std::memory_order_acquire) & kSet; }
  // Returns the result, or 0 if there is none yet. Fibers, foreign threads and signal handlers. Never parks.
  int error() const {
    uint64_t w = word_.load(std::memory_order_acquire);
    return w & kSet ? error_of(w) : 0;
  }

  // Waits until the future is set, and returns its result. ECANCELED: the caller was cancelled; isSet() is false then, unless ECANCELED is
  // the result, and the caller may wait again. EBUSY: another thread waits or has subscribed. Fibers and foreign threads. May park.
  int wait() { return waitUntil(kForever); }
  // Waits until `deadline_ns` on CLOCK_MONOTONIC, or for `timeout_ns` nanoseconds from now, at most: then ETIMEDOUT. A result that is there
  // is returned in any case. Other errors and callers as of wait(). May park.
  int waitUntil(uint64_t deadline_ns) { return isSet() ? error() : checked(wait_slow(deadline_ns)); }
  int waitWithTimeout(uint64_t timeout_ns) { return isSet() ? error() : checked(wait_slow(deadline_after(timeout_ns))); }

  // Waits until at least one of `n` futures is set, and returns 0; isSet() tells which. It looks at them in order and stops at the first
  // that is set. ETIMEDOUT at `deadline_ns` on CLOCK_MONOTONIC. ECANCELED: the caller was cancelled. EBUSY: another thread waits for one of
  // them. EINVAL: `n` is 0, or a future is there twice. After the return, a thread that sets one of them touches no more than the future's
  // own word. Fibers and foreign threads. May park.
  static int waitForMultiple(FiberFuture* const futures[], size_t n, uint64_t deadline_ns = kForever) {
    int e = wait_for_any(futures, n, deadline_ns);
#ifdef FIBERTHREAD_DEBUG_CHECKS
    if (e == EBUSY) report_misuse("FiberFuture", futures[0], "is, or another beside it, waited for by two");
#endif
    return e;
  }

  // Has `callback` called when the future is set, or at once if it is. EBUSY: another thread waits or has subscribed. Fibers and foreign
  // threads. Never parks.
  int subscribe(SubscribeCallback* callback) { return checked(set_callback(callback)); }
  // Takes the callback back. Returns true if it will not be called, because it was subscribed and no longer is. Consumer only. Never parks.
  bool unsubscribe(SubscribeCallback* callback) {
    uint64_t w = reinterpret_cast<uintptr_t>(callback) | kCallback;
    return word_.compare_exchange_strong(w, 0, std::memory_order_acquire, std::memory_order_acquire);
  }

  // Makes the future one that has not been set, for the next use. Consumer only, once it is set. Never parks.
  void reset() {
    uint64_t w = word_.exchange(0, std::memory_order_relaxed);
    (void)w;
#ifdef FIBERTHREAD_DEBUG_CHECKS
    if (w == kDestroyedWord) report_misuse("FiberFuture", this, "is reset after it was destroyed");
    if (w != 0 && !(w & kSet)) report_misuse("FiberFuture", this, "is reset while somebody waits for it");
#endif
  }

 private:
  friend class FiberSequencer;

  // {waiter: 61, multipleWait, hasCallback, isSet}: the waiter is a FiberRecord, a MultipleWaitState or a SubscribeCallback.
  // {error: 61, 0, 0, isSet} once the future is set: then there is no waiter, and set() does not touch the word any more.
  static constexpr uint64_t kSet = 1, kCallback = 2, kMultiple = 4, kKinds = 7;
  static int error_of(uint64_t w) { return static_cast<int>(static_cast<uint32_t>(w >> 3)); }
  FIBERTHREAD_API int wait_slow(uint64_t deadline_ns);
  FIBERTHREAD_API static int wait_for_any(FiberFuture* const futures[], size_t n, uint64_t deadline_ns);
  FIBERTHREAD_API int set_callback(SubscribeCallback* callback);
  int checked(int e) const {
#ifdef FIBERTHREAD_DEBUG_CHECKS
    if (e == EBUSY && !isSet()) report_misuse("FiberFuture", this, "is waited for by two");
#endif
    return e;
  }
  // `interrupts` may end the wait. `what` and `object` are for reports.
  int wait_for_set(uint64_t deadline_ns, uint32_t interrupts, const char* what, const void* object);
  static int in_use(uint64_t w, const void* object);

  std::atomic<uint64_t> word_{0};
};
static_assert(sizeof(FiberFuture) == 8, "one word");

}  // namespace fiberthread
