// SPDX-License-Identifier: MIT
// Semaphore: permits are neither lost nor doubled, go out in FIFO order, and waits end as they should.
// alone: sync
#include "fiberthread/semaphore.h"

#include "tests/test.h"

#include <errno.h>
#include <string.h>

#include <atomic>
#include <initializer_list>

#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(semaphore, counts) {
  Semaphore s(2);
  cr_assert_eq(s.available(), 2u);
  cr_assert(s.try_acquire());
  cr_assert_eq(s.acquire(), 0);
  cr_assert(!s.try_acquire());
  cr_assert_eq(s.acquire_for(0), ETIMEDOUT);
  s.release(3);
  cr_assert_eq(s.available(), 3u);
  cr_assert_eq(s.acquire_until(0), 0);  // a call that need not wait ignores its deadline
}

Test(semaphore, permits_go_out_in_the_order_of_arrival) {
  for (uint64_t n : {1, 2, 7}) {
    constexpr int kThreads = 7;
    Semaphore s(0);
    std::atomic<int> served{0}, order[kThreads];
    Threads t;
    for (int i = 0; i < kThreads; i++) {
      auto body = [&, i] {
        cr_assert_eq(s.acquire(), 0);
        order[i] = served++ / static_cast<int>(n);
      };
      i % 3 == 1 ? t.kernel(body) : t.fiber(body);
      until_queued(&s, static_cast<size_t>(i) + 1);
    }
    for (uint64_t given = 0; given < kThreads; given += n) {
      s.release(n);
      while (served < std::min<int>(kThreads, static_cast<int>(given + n))) {
        if (given + n <= kThreads) cr_assert(!s.try_acquire());  // the permits were not free in between
        give_way();
      }
    }
    t.join();
    for (int i = 0; i < kThreads; i++) cr_assert_eq(order[i], i / static_cast<int>(n));
    cr_assert_eq(s.available(), (kThreads + n - 1) / n * n - kThreads);
  }
}

Test(semaphore, gives_up_in_time_but_not_early) {
  Semaphore s(0);
  for (bool kernel : {false, true}) {
    Threads t;
    auto body = [&] {
      for (uint64_t ms : {0, 1, 15}) {
        uint64_t deadline = now_ns() + ms * kMs;
        cr_assert_eq(s.acquire_until(deadline), ETIMEDOUT);
        cr_assert(now_ns() >= deadline);
        cr_assert_eq(s.acquire_for(ms * kMs), ETIMEDOUT);
        cr_assert(now_ns() >= deadline + ms * kMs);
      }
    };
    kernel ? t.kernel(body) : t.fiber(body);
  }
  cr_assert_eq(queued(&s), 0u);
  s.release();  // the bit of the ended waits is left over
  cr_assert_eq(s.available(), 1u);
}

Test(semaphore, cancellation_takes_no_permit) {
  Semaphore s(0);
  std::atomic<FiberRecord*> waits{nullptr};
  Threads t;
  t.fiber([&] {
    waits = self();
    cr_assert_eq(s.acquire(), ECANCELED);
    self()->run.interrupts.fetch_and(~uint32_t{kInterruptEnd});
  });
  until_queued(&s, 1);
  interrupt(waits, kInterruptEnd);
  t.join();
  s.release();
  cr_assert(s.try_acquire());
}

Test(semaphore, no_permit_is_lost_or_doubled, .timeout = 120) {
  constexpr int kThreads = 12, kPermits = 3;
  const int kRounds = chaos_rounds(4000);
  Semaphore s(kPermits);
  std::atomic<int> inside{0};
  Threads t;
  for (int i = 0; i < kThreads; i++) {
    auto body = [&, i] {
      Random random{static_cast<uint64_t>(i)};
      for (int r = 0; r < kRounds; r++) {
        switch (random(3)) {
          case 0:
            if (s.acquire_for(random(30'000))) continue;
            break;
          case 1:
            if (!s.try_acquire()) continue;
            break;
          default: cr_assert_eq(s.acquire(), 0);
        }
        cr_assert(++inside <= kPermits);
        if (random(16) == 0) give_way();
        inside--;
        s.release();
      }
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
  t.join();
  cr_assert_eq(s.available(), uint64_t{kPermits});
  cr_assert_eq(queued(&s), 0u);
}

Test(semaphore, last_permit_holder_may_destroy_it, .timeout = 120) {
  for (int round = 0; round < chaos_rounds(2000); round++) {
    auto* s = new Semaphore(0);
    Threads t;
    auto release = [s] { s->release(); };
    round % 8 == 0 ? t.kernel(release) : t.fiber(release);
    if (round % 3) give_way();
    cr_assert_eq(s->acquire(), 0);
    s->~Semaphore();
    memset(static_cast<void*>(s), 0x5a, sizeof *s);
    operator delete(s);
  }
}

}  // namespace
