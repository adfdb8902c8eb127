// SPDX-License-Identifier: MIT
// FiberFuture: one result, set by one side and waited for by the other.
//
// Cost: set() is one compare-and-swap, and an unpark if somebody waits; waiting for what has been set one load; else one
// compare-and-swap and a park. No memory but the word; zero-filled memory is a future that has not been set.
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

// What FiberFuture::subscribe() takes: derive from it, or make it the first member. It lives until it was called or unsubscribe()
// has returned true.
struct SubscribeCallback {
  // In the context of who sets the future, which may be a signal handler: short, and must not wait. The future may be gone by then.
  void (*call)(SubscribeCallback* self, int error);
};

// One producer, which sets it; one consumer, which waits, subscribes, resets and destroys. Fibers, bound fibers and foreign threads
// may be either. The consumer may destroy it as soon as it knows that it is set, even if set() has not returned yet.
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

  // Gives the result, 0 or an errno value, and wakes the consumer or calls its callback. The first call counts: false if it was set
  // before, and nothing has changed. Never parks; also in signal handlers. What happened before it is seen by who finds it set.
  FIBERTHREAD_API bool set(int error = 0);

  // Any thread, any context.
  bool isSet() const { return word_.load(std::memory_order_acquire) & kSet; }
  // What was set; 0 if nothing was yet.
  int error() const {
    uint64_t w = word_.load(std::memory_order_acquire);
    return w & kSet ? error_of(w) : 0;
  }

  // Waits until it is set and returns what was set. Or ECANCELED if the caller was cancelled (isSet() tells the two apart: then it is
  // not set, and may be waited for again); EBUSY if somebody waits or has subscribed already. May park. Not in signal handlers.
  int wait() { return waitUntil(kForever); }
  // The same until `deadline_ns` on CLOCK_MONOTONIC, or for `timeout_ns` from now: then ETIMEDOUT. A result that is there is
  // returned in any case.
  int waitUntil(uint64_t deadline_ns) { return isSet() ? error() : checked(wait_slow(deadline_ns)); }
  int waitWithTimeout(uint64_t timeout_ns) { return isSet() ? error() : checked(wait_slow(deadline_after(timeout_ns))); }

  // Waits until at least one of `n` is set: 0, and isSet() tells which. Else ETIMEDOUT, ECANCELED; EBUSY if somebody else waits for
  // one, EINVAL if n is 0 or one is there twice. Looks at them in order and stops at the first that is set. On return, none is
  // touched any more by whoever sets it meanwhile, beyond its own word.
  static int waitForMultiple(FiberFuture* const futures[], size_t n, uint64_t deadline_ns = kForever) {
    int e = wait_for_any(futures, n, deadline_ns);
#ifdef FIBERTHREAD_DEBUG_CHECKS
    if (e == EBUSY) report_misuse("FiberFuture", futures[0], "is, or another beside it, waited for by two");
#endif
    return e;
  }

  // Instead of waiting: `callback` is called when it is set; here and now if it is. EBUSY if somebody waits or has subscribed, else 0.
  int subscribe(SubscribeCallback* callback) { return checked(set_callback(callback)); }
  // True if the callback will not be called: it was subscribed, and no longer is.
  bool unsubscribe(SubscribeCallback* callback) {
    uint64_t w = reinterpret_cast<uintptr_t>(callback) | kCallback;
    return word_.compare_exchange_strong(w, 0, std::memory_order_acquire, std::memory_order_acquire);
  }

  // Makes it one that has not been set, for the next use. By the consumer, once it is set.
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
  // {error: 61, 0, 0, isSet} once it is set: then there is no waiter, and who sets it has no more to do with the word.
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
  // `interrupts`: what may end it; `what` and `object` for reports.
  int wait_for_set(uint64_t deadline_ns, uint32_t interrupts, const char* what, const void* object);
  static int in_use(uint64_t w, const void* object);

  std::atomic<uint64_t> word_{0};
};
static_assert(sizeof(FiberFuture) == 8, "one word");

}  // namespace fiberthread
