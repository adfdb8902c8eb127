// SPDX-License-Identifier: MIT
// Once: a function that is called once, by the first caller. The others wait until it has returned.
#pragma once
#include <atomic>
#include <cstdint>
#include <utility>

#include "api.h"

namespace fiberthread {

// Cost: one load once the function has returned. Fibers and foreign threads may call all members; signal handlers must not. Zero-filled
// memory is a Once that has not been called.
class Once {
 public:
  constexpr Once() = default;
  Once(const Once&) = delete;
  Once& operator=(const Once&) = delete;
  FIBERTHREAD_API ~Once();

  // Calls f(), unless a function was called before. If another thread is calling one, waits until that has returned. A function that leaves
  // by an exception, or whose thread is unwound, does not count: then one of the waiters, or the next caller, calls its own. The function
  // must not use the same Once. Cancellation does not end the wait. Fibers and foreign threads. May park.
  template <class F>
  void call(F&& f) {
    // Acquire: the caller sees what f did.
    if (word_.load(std::memory_order_acquire) == kDone || !begin()) return;
    struct Guard {
      Once* once;
      bool done;
      ~Guard() { once->end(done); }
    } guard{this, false};
    std::forward<F>(f)();
    guard.done = true;
  }
  // Returns whether the function has returned. Fibers and foreign threads. Never parks.
  bool done() const { return word_.load(std::memory_order_acquire) == kDone; }

 private:
  static constexpr uint64_t kIdle = 0, kRuns = 1, kAwaited = 2, kDone = 3;
  FIBERTHREAD_API bool begin();  // true: the caller calls the function
  FIBERTHREAD_API void end(bool done);

  std::atomic<uint64_t> word_{kIdle};
};

}  // namespace fiberthread
