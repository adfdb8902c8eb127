// SPDX-License-Identifier: MIT
// Once: a function that is called once, whoever comes first; the others wait until it has returned.
#pragma once
#include <atomic>
#include <cstdint>
#include <utility>

#include "api.h"

namespace fiberthread {

// Cost: one load once it is done. Fibers, bound fibers and foreign threads; not in signal handlers. May park; not ended by
// cancellation. Zero-filled memory is one that has not been called. A function that leaves by an exception (or an unwinding
// thread) has not been called: one of those who wait, or the next one, calls its own.
class Once {
 public:
  constexpr Once() = default;
  Once(const Once&) = delete;
  Once& operator=(const Once&) = delete;
  FIBERTHREAD_API ~Once();

  template <class F>
  void call(F&& f) {
    // Acquire: what f did is seen.
    if (word_.load(std::memory_order_acquire) == kDone || !begin()) return;
    struct Guard {
      Once* once;
      bool done;
      ~Guard() { once->end(done); }
    } guard{this, false};
    std::forward<F>(f)();
    guard.done = true;
  }
  bool done() const { return word_.load(std::memory_order_acquire) == kDone; }

 private:
  static constexpr uint64_t kIdle = 0, kRuns = 1, kAwaited = 2, kDone = 3;
  FIBERTHREAD_API bool begin();  // true: it is for the caller to call the function
  FIBERTHREAD_API void end(bool done);

  std::atomic<uint64_t> word_{kIdle};
};

}  // namespace fiberthread
