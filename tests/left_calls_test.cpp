// SPDX-License-Identifier: MIT
// A handler of a signal leaves a call of `sync` by a jump, at any instruction where a handler can begin. Waiters that the call has taken out
// of a queue by then must not wait for ever.
// alone: sync
#include "tests/test.h"
#if defined(__x86_64__)
#include <string.h>

#include <atomic>

#include "fiberthread/mutex.h"
#include "fiberthread/wait_group.h"
#include "tests/single_steps.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

// Tells whether an object has changed since keep() was called.
template <class T>
class Before {
 public:
  void keep(const T& object) { memcpy(bytes_, static_cast<const void*>(&object), sizeof object); }
  bool changed(const T& object) const { return memcmp(bytes_, static_cast<const void*>(&object), sizeof object) != 0; }

 private:
  unsigned char bytes_[sizeof(T)];
};

// Leaves Case::call() at each instruction in turn, each time with a new object. begin() makes fibers that wait for it. finish() wakes those
// that the call has left in the queue, and returns true if there were none.
template <class Case>
void leave_everywhere() {
  if (chaos_seed) return;  // its delays would be most of the instructions
  steps::one_worker();
  int too_late = 0;
  for (int step = 0;; step++) {
    Case c;
    Threads waiters, other;
    c.begin(waiters);
    bool left = steps::leave(other, step, [&] { c.call(); });
    too_late += c.finish();
    waiters.join();
    other.join();
    cr_assert_eq(c.gone_on, Case::kWaiters);
    if (!left) break;
  }
  cr_assert_gt(too_late, 0);
}

struct Unlock {
  static constexpr int kWaiters = 2;
  Mutex m;
  std::atomic<int> gone_on{0};
  std::atomic<FiberRecord*> waits[kWaiters] = {};
  Before<Mutex> before;

  void begin(Threads& t) {
    m.lock();
    for (auto& w : waits) {
      t.fiber([&] {
        w = self();
        m.lock();
        gone_on++;
        m.unlock();
      });
      while (!w) give_way();
      until_parked(w);
    }
    before.keep(m);
  }
  void call() { m.unlock(); }
  bool finish() {
    bool unlocked = before.changed(m);  // once the mutex has changed, the call is over, except for its way out
    if (!unlocked) m.unlock();
    return unlocked;
  }
};

struct Notify {
  static constexpr int kWaiters = 3;
  Mutex m;
  ConditionVariable c;
  std::atomic<int> gone_on{0};

  void begin(Threads& t) {
    for (int i = 0; i < kWaiters; i++)
      t.fiber([&] {
        m.lock();
        cr_assert_eq(c.wait(m), 0);
        m.unlock();
        gone_on++;
      });
    until_queued(&c, kWaiters);
  }
  void call() { c.notify_all(); }
  bool finish() {
    bool notified = queued(&c) == 0;
    c.notify_all();
    return notified;
  }
};

struct LastArrival {
  static constexpr int kWaiters = 2;
  Barrier b{kWaiters + 1};
  std::atomic<int> gone_on{0};
  Before<Barrier> before;

  void begin(Threads& t) {
    for (int i = 0; i < kWaiters; i++)
      t.fiber([&] {
        cr_assert_eq(b.arrive_and_wait(), 0);
        gone_on++;
      });
    until_queued(&b, kWaiters);
    before.keep(b);
  }
  void call() { b.arrive(); }
  bool finish() {
    bool arrived = before.changed(b);  // otherwise that thread has not arrived
    if (!arrived) b.arrive();
    return arrived;
  }
};

Test(left_calls, unlock_of_a_mutex, .timeout = 120) { leave_everywhere<Unlock>(); }
Test(left_calls, notification, .timeout = 120) { leave_everywhere<Notify>(); }
Test(left_calls, last_arrival_at_a_barrier, .timeout = 120) { leave_everywhere<LastArrival>(); }

}  // namespace
#endif
