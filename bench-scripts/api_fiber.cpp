// SPDX-License-Identifier: MIT
// Fibers: made, called, woken, cancelled, joined.
#include "api.h"
#include "fiberthread/cancel_token.h"
#include "fiberthread/fiber.h"

using namespace fiberthread;

namespace {

double spawn_join() {
  return ns_each(100'000, [](long n) {
    for (long i = 0; i < n; i++) Fiber::spawn([] {}).join();
  });
}

// The spawned closure does not fit into a word.
double spawn_join_closure() {
  return ns_each(100'000, [](long n) {
    long a = 1, b = 2, c = 0;
    for (long i = 0; i < n; i++) Fiber::spawn([&a, &b, &c] { c += a + b; }).join();
  });
}

double spawn_500() {
  return ns_each(500 * 100, [](long n) {
    std::vector<Fiber> fibers(500);
    for (long i = 0; i < n; i += 500) {
      for (Fiber& f : fibers) f = Fiber::spawn([] {});
      for (Fiber& f : fibers) f.join();
    }
  });
}

double call() {
  return ns_each(100'000, [](long n) {
    for (long i = 0; i < n; i++) {
      Fiber f = Fiber::create([] {});
      f.call();
      f.join();
    }
  });
}

double yield_wakeup() {
  return ns_each(200'000, [](long n) {
    FiberRef me = Fiber::self();
    Fiber other = Fiber::spawn([me, n] {
      for (long i = 0; i < n / 2; i++) {
        Fiber::yield();
        me.wakeup();
      }
    });
    for (long i = 0; i < n / 2; i++) {
      other.wakeup();
      Fiber::yield();
    }
    other.join();
  });
}

double reschedule() {
  return ns_each(200'000, [](long n) {
    in_threads(16, [n](int) {
      for (long i = 0; i < n / 16; i++) Fiber::reschedule();
    });
  });
}

double token_scope() {
  CancelToken token;
  return ns_each(500'000, [&](long n) {
    for (long i = 0; i < n; i++) CancelToken::Scope scope(token);
  });
}

CASE("spawn-join", spawn_join, .goal = 200, .what = "a fiber is made, runs and is joined");
CASE("spawn-join-closure", spawn_join_closure, .what = "the same, with a callable that needs memory");
CASE("spawn-join-500", spawn_500, .what = "the same, with 500 made before the first is joined");
CASE("call-join", call, .what = "a fiber is made, called and joined");
CASE("yield-wakeup", yield_wakeup, .cpus = 1, .what = "one of two wakes the other and waits");
CASE("reschedule-16", reschedule, .what = "one of sixteen lets others run");
CASE("token-scope", token_scope, .what = "a token is used and left");

}  // namespace
