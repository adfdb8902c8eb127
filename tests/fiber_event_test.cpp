// SPDX-License-Identifier: MIT
// FiberEvent, which is a FiberSequencer: it is set and reset, and forgets no waiter.
// alone: sync
#include "fiberthread/fiber_event.h"

#include "tests/test.h"

#include <errno.h>

#include <atomic>
#include <initializer_list>

#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(fiber_event, is_set_and_reset) {
  alignas(FiberEvent) unsigned char memory[sizeof(FiberEvent)] = {};
  auto& e = *reinterpret_cast<FiberEvent*>(memory);
  cr_assert(!e.isSet());
  cr_assert_eq(e.waitUntil(0), ETIMEDOUT);
  e.reset();
  cr_assert(!e.isSet());
  for (int i = 0; i < 3; i++) {
    e.set();
    e.set();
    cr_assert(e.isSet());
    cr_assert_eq(e.wait(), 0);
    cr_assert_eq(e.waitUntil(0), 0);
    FiberEvent::Future f;
    e.wait(&f);
    cr_assert(f.isSet() && f.error() == 0);
    e.reset();
    e.reset();
    cr_assert(!e.isSet());
    uint64_t deadline = now_ns() + kMs;
    cr_assert_eq(e.waitWithTimeout(kMs), ETIMEDOUT);
    cr_assert(now_ns() >= deadline);
  }
}

Test(fiber_event, wakes_all_even_if_reset_at_once) {
  FiberEvent e;
  for (int round = 0; round < 50; round++) {
    FiberRecord* who[9] = {};
    std::atomic<int> known{0};
    FiberEvent::Future f, g;
    Threads t;
    for (size_t i = 0; i < 9; i++)
      t.any(i, [&, i] {
        who[i] = self();
        known++;
        cr_assert_eq(e.wait(), 0);
      });
    e.wait(&f);
    e.wait(&g);
    cr_assert(g.cancel());
    while (known != 9) give_way();
    for (auto* w : who) until_parked(w);
    e.set();
    e.reset();
    cr_assert_eq(f.wait(), 0);
    cr_assert_eq(g.wait(), ECANCELED);
    cr_assert(!e.isSet());
    t.join();
  }
}

// Producers and a consumer take turns by events. They miss no event under chaos.
void agree(unsigned workers, uint64_t seed) {
  use_chaos(workers, seed);
  constexpr int kRounds = 700;
  for (bool kernel : {false, true}) {
    FiberEvent full, empty;
    int value = 0;
    empty.set();
    Threads t;
    auto produce = [&] {
      for (int i = 1; i <= kRounds; i++) {
        cr_assert_eq(empty.wait(), 0);
        empty.reset();
        value = i;
        full.set();
      }
    };
    kernel ? t.kernel(produce) : t.fiber(produce);
    for (int i = 1; i <= kRounds; i++) {
      cr_assert_eq(full.wait(), 0);
      full.reset();
      cr_assert_eq(value, i);
      empty.set();
    }
  }
}
Test(fiber_event, chaos_1_worker, .timeout = 240) { agree(1, 3); }
Test(fiber_event, chaos_2_workers, .timeout = 240) { agree(2, 4); }
Test(fiber_event, chaos_16_workers, .timeout = 240) { agree(16, 5); }

}  // namespace
