// SPDX-License-Identifier: MIT
// Futures, futexes, sequencers, events, and the mutexes that are one word.
#include "api.h"
#include "fiberthread/fair_fiber_mutex.h"
#include "fiberthread/fiber_event.h"
#include "fiberthread/fiber_futex.h"
#include "fiberthread/fiber_future.h"
#include "fiberthread/fiber_mutex.h"
#include "fiberthread/fiber_sequencer.h"

using namespace fiberthread;

namespace {

double future_set_wait() {
  FiberFuture to, fro;
  return by_turns(
      200'000,
      [&](long) {
        to.set();
        fro.wait();
        fro.reset();
      },
      [&](long) {
        to.wait();
        to.reset();
        fro.set();
      });
}

double future_ready() {
  return ns_each(1'000'000, [](long n) {
    for (long i = 0; i < n; i++) {
      FiberFuture f;
      f.set(static_cast<int>(i));
      f.wait();
    }
  });
}

// The other side sets one of eight futures. The waiter attaches to all of them and detaches.
double future_multiple() {
  FiberFuture eight[8], back;
  FiberFuture* all[8];
  for (int i = 0; i < 8; i++) all[i] = &eight[i];
  return 2 * by_turns(
                 100'000,
                 [&](long i) {
                   FiberFuture::waitForMultiple(all, 8);
                   eight[i % 8].reset();
                   back.set();
                 },
                 [&](long i) {
                   eight[i % 8].set();
                   back.wait();
                   back.reset();
                 });
}

double futex_ping_pong() {
  FiberFutex to, fro;
  uint64_t a = 0, b = 0;
  return by_turns(
      200'000,
      [&](long) {
        to.post();
        fro.wait(++a);
      },
      [&](long) {
        to.wait(++b);
        fro.post();
      });
}

double sequencer_ping_pong() {
  FiberSequencer to, fro;
  uint64_t a = 0, b = 0;
  return by_turns(
      200'000,
      [&](long) {
        to.increment();
        fro.wait(++a);
      },
      [&](long) {
        to.wait(++b);
        fro.increment();
      });
}

double sequencer_increment() {
  FiberSequencer s;
  return ns_each(1'000'000, [&](long n) {
    for (long i = 0; i < n; i++) s.increment();
  });
}

double event_ping_pong() {
  FiberEvent to, fro;
  return by_turns(
      200'000,
      [&](long) {
        to.set();
        fro.wait();
        fro.reset();
      },
      [&](long) {
        to.wait();
        to.reset();
        fro.set();
      });
}

CASE("future-set-wait", future_set_wait, .goal = 100, .cpus = 1, .what = "a future is set, and the fiber that waits for it runs");
CASE("future-ready", future_ready, .what = "a future is set, and then waited for");
CASE("future-multiple-8", future_multiple, .cpus = 1, .what = "a wait for eight futures, until one is set; there and back");
CASE("futex-post-wait", futex_ping_pong, .cpus = 1, .what = "a post, and the fiber that waits for it runs");
CASE("sequencer-increment", sequencer_increment, .what = "one up, while nobody waits");
CASE("sequencer-increment-wait", sequencer_ping_pong, .cpus = 1, .what = "one up, and the fiber that waits for it runs");
CASE("event-set-wait", event_ping_pong, .cpus = 1, .what = "an event is set, and the fiber that waits for it runs");
CASE("mutex-uncontended", lock_unlock<FiberMutex>, .goal = 5, .what = "lock and unlock of a FiberMutex");
CASE("mutex-8", [] { return lock_unlock_8<FiberMutex>(400'000); }, .what = "the same by eight at once, with a count in between");
CASE("fair-mutex-uncontended", lock_unlock<FairFiberMutex>, .what = "lock and unlock of a FairFiberMutex");
CASE("fair-mutex-8", [] { return lock_unlock_8<FairFiberMutex>(); }, .what = "the same by eight at once");

}  // namespace
