// SPDX-License-Identifier: MIT
#include "fiberthread/fiber_future.h"

#include "sched/chaos.h"
#include "sched/embedder.h"
#include "sched/fiber.h"
#include "sched/wait.h"

namespace fiberthread {
namespace {

// A wait for several futures, on the stack of the waiting thread. A future that is set while it points here sends a signal.
struct alignas(8) MultipleWaitState {
  FiberRecord* fiber;
  // Number of complete signals. Counting is the last touch of the thread that signals. The waiter returns only when all signals that it
  // could not take back are complete.
  std::atomic<uint32_t> complete{0};
};
static_assert(alignof(FiberRecord) >= 8 && alignof(SubscribeCallback) >= 8);

// Waits like wait_until(), and returns an error number. The caller has counted FiberRecord::wait.pins up, and calls wait_over().
template <class Over, class Withdraw>
int wait_until_over(FiberRecord* me, Over over, Withdraw withdraw, const ParkReason& reason, uint64_t deadline, uint32_t interrupts) {
  switch (wait_until(me, kNoFlag, 0, over, withdraw, reason, deadline, interrupts)) {
    case WaitEnd::Over: return 0;
    case WaitEnd::TimedOut: return ETIMEDOUT;
    case WaitEnd::Interrupted: return ECANCELED;
    case WaitEnd::Ends: break;
  }
  wait_over(me);
  embedder().end_now();
  __builtin_unreachable();
}

}  // namespace

int FiberFuture::in_use(uint64_t w, const void* object) {
  if (w == kDestroyedWord) report_misuse("FiberFuture", object, "is waited for after it was destroyed");
  return EBUSY;
}

bool FiberFuture::set(int error) {
  Busy busy;  // a thread that has taken the waiter out must wake it: a handler in between might not return
  uint64_t w = word_.load(std::memory_order_relaxed);
  do {
    if (w == kDestroyedWord) report_misuse("FiberFuture", this, "is set after it was destroyed");
    if (w & kSet) return false;
    chaos_delay();
    // Release for the consumer. Acquire for the fields that the waiter has written into its state or callback.
  } while (!word_.compare_exchange_weak(w, static_cast<uint64_t>(static_cast<uint32_t>(error)) << 3 | kSet, std::memory_order_acq_rel,
                                        std::memory_order_relaxed));
  // From here on the future may be gone. The waiter's stack may be gone, too, but not its record.
  chaos_delay();
  uint64_t waiter = w & ~kKinds;
  switch (w & kKinds) {
    case kCallback: {
      auto* callback = reinterpret_cast<SubscribeCallback*>(waiter);
      callback->call(callback, error);
      break;
    }
    case kMultiple: {
      auto* state = reinterpret_cast<MultipleWaitState*>(waiter);
      FiberRecord* f = state->fiber;
      state->complete.fetch_add(1, std::memory_order_release);
      chaos_delay();
      unpark(f);
      break;
    }
    default:
      if (waiter) unpark(reinterpret_cast<FiberRecord*>(waiter));
  }
  return true;
}

int FiberFuture::wait_for_set(uint64_t deadline, uint32_t interrupts, const char* what, const void* object) {
  FiberRecord* me = self();
  uint64_t mine = reinterpret_cast<uint64_t>(me), w = 0;
  me->wait.pins++;  // first: unwinding must not leave our record in the word
  chaos_delay();
  int e = 0;
  if (word_.compare_exchange_strong(w, mine, std::memory_order_release, std::memory_order_acquire)) {
    auto over = [&] { return (w = word_.load(std::memory_order_acquire)) & kSet; };
    auto withdraw = [&] {
      w = mine;
      return word_.compare_exchange_strong(w, 0, std::memory_order_relaxed);  // over() looks again
    };
    e = wait_until_over(me, over, withdraw, {what, object}, deadline, interrupts);
    if (e == 0) e = error_of(w);
  } else {
    e = w & kSet ? error_of(w) : in_use(w, this);
  }
  wait_over(me);
  return e;
}

int FiberFuture::wait_slow(uint64_t deadline_ns) { return wait_for_set(plain_deadline(deadline_ns), kInterruptEnd, "future", this); }

int FiberFuture::wait_for_any(FiberFuture* const futures[], size_t n, uint64_t deadline_ns) {
  if (n == 0) return EINVAL;
  FiberRecord* me = self();
  MultipleWaitState state{me};
  const uint64_t tagged = reinterpret_cast<uint64_t>(&state) | kMultiple;
  size_t attached = 0;
  uint32_t signals = 0;  // number of signals that could not be taken back
  auto detach = [&] {
    for (; attached > 0; attached--) {
      uint64_t w = tagged;
      chaos_delay();
      if (!futures[attached - 1]->word_.compare_exchange_strong(w, 0, std::memory_order_relaxed)) signals++;
    }
    return signals == 0;
  };
  const ParkReason reason{"futures", &state};
  me->wait.pins++;
  int result = 0;
  bool wait = true;
  for (size_t i = 0; i < n && wait; i++) {
    uint64_t w = 0;
    chaos_delay();
    if (futures[i]->word_.compare_exchange_strong(w, tagged, std::memory_order_release, std::memory_order_acquire)) {
      attached++;
    } else {
      wait = false;
      if (!(w & kSet)) result = w == tagged ? EINVAL : in_use(w, futures[i]);
    }
  }
  if (wait) {
    auto over = [&] { return state.complete.load(std::memory_order_acquire) != 0; };
    result = wait_until_over(me, over, detach, reason, plain_deadline(deadline_ns), kInterruptEnd);
  }
  detach();
  // Acquire: what the signalling threads did with `state` happens before it goes.
  for (uint32_t c; (c = state.complete.load(std::memory_order_acquire)) != signals;) park_if(&state.complete, c, reason);
  wait_over(me);
  return result;
}

int FiberFuture::set_callback(SubscribeCallback* callback) {
  uint64_t w = 0;
  uint64_t tagged = reinterpret_cast<uint64_t>(callback) | kCallback;
  if (word_.compare_exchange_strong(w, tagged, std::memory_order_release, std::memory_order_acquire)) return 0;
  if (!(w & kSet)) return in_use(w, this);
  callback->call(callback, error_of(w));
  return 0;
}

}  // namespace fiberthread
