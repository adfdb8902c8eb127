// SPDX-License-Identifier: MIT
// FiberFutex: counts are reached, and wake-ups arrive once and in order. The futex may be destroyed when a wait has returned.
// alone: sync
#include "fiberthread/fiber_futex.h"

#include "tests/test.h"

#include <errno.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "fiberthread/semaphore.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(fiber_futex, counts_from_zeros) {
  alignas(FiberFutex) unsigned char memory[sizeof(FiberFutex)] = {};
  auto& f = *reinterpret_cast<FiberFutex*>(memory);
  cr_assert_eq(f.get(), 0u);
  f.post();
  f.postOne();
  cr_assert_eq(f.get(), 2u);
  cr_assert(f.wait(0) == 0 && f.wait(2) == 0);
  cr_assert_eq(f.waitUntil(2, 0), 0);  // reached: the deadline does not matter
}

void gives_up(FiberFutex& f) {
  for (uint64_t ms : {0, 1, 15}) {
    uint64_t deadline = now_ns() + ms * kMs;
    cr_assert_eq(f.waitUntil(f.get() + 1, deadline), ETIMEDOUT);
    cr_assert(now_ns() >= deadline);
  }
}

Test(fiber_futex, gives_up_in_time_but_not_early) {
  FiberFutex f;
  gives_up(f);
  Threads t;
  t.kernel([&] { gives_up(f); });
  t.fiber([&] { gives_up(f); });
  t.join();
  cr_assert_eq(queued(&f), 0u);
  f.post();  // the bit of the ended waits is left over
  cr_assert_eq(f.get(), 1u);
}

Test(fiber_futex, post_wakes_those_whose_count_has_come) {
  FiberFutex f;
  std::atomic<int> woken{0};
  Threads t;
  for (uint64_t i = 0; i < 12; i++) {
    auto body = [&, i] {
      uint64_t token = i / 3 + 1;  // 1 to 4, three of each
      cr_assert_eq(f.wait(token), 0);
      cr_assert(f.get() >= token);
      woken++;
    };
    i < 3 ? t.kernel(body) : t.fiber(body);
  }
  until_queued(&f, 12);
  for (int posts = 1; posts <= 4; posts++) {
    f.post();
    while (woken < 3 * posts) give_way();
    until_queued(&f, static_cast<size_t>(12 - 3 * posts));
    cr_assert_eq(woken, 3 * posts);
  }
}

Test(fiber_futex, post_one_wakes_the_first_that_it_can) {
  FiberFutex f;
  std::atomic<int> last{-1}, woken{0};
  const uint64_t tokens[] = {3, 1, 1, 2, 1};
  Threads t;
  for (int i = 0; i < 5; i++) {
    t.fiber([&, i] {
      cr_assert_eq(f.wait(tokens[i]), 0);
      last = i;
      woken++;
    });
    until_queued(&f, static_cast<size_t>(i) + 1);
  }
  const int order[] = {1, 2, 0, 3, 4};
  for (int i = 0; i < 5; i++) {
    f.postOne();
    while (woken != i + 1) give_way();
    cr_assert_eq(last, order[i]);
    cr_assert_eq(queued(&f), static_cast<size_t>(4 - i));
  }
  cr_assert_eq(f.get(), 5u);
}

Test(fiber_futex, ping_pong) {
  constexpr uint64_t kRounds = 20000;
  for (bool kernel : {false, true}) {
    FiberFutex ping, pong;
    Threads t;
    auto echo = [&] {
      for (uint64_t i = 1; i <= kRounds; i++) {
        cr_assert_eq(ping.wait(i), 0);
        i % 2 ? pong.post() : pong.postOne();
      }
    };
    kernel ? t.kernel(echo) : t.fiber(echo);
    for (uint64_t i = 1; i <= kRounds; i++) {
      i % 3 ? ping.post() : ping.postOne();
      cr_assert_eq(pong.wait(i), 0);
    }
  }
}

Test(fiber_futex, cancelled_waits_end_and_take_no_wake_up) {
  for (size_t kind = 0; kind < 3; kind++) {
    FiberFutex f;
    FiberRecord* waits = nullptr;
    std::atomic<int> woken{0};
    Threads first, others;
    first.any(kind, [&] {
      waits = self();
      cr_assert_eq(f.wait(1), ECANCELED);
      cr_assert_eq(f.waitWithTimeout(1, 100'000 * kMs), ECANCELED);  // it stays cancelled
      f.post();
      cr_assert_eq(f.wait(1), 0);  // reached: it need not wait
      forget_cancel();
    });
    until_queued(&f, 1);
    for (int i = 0; i < 2; i++) {
      others.any(kind + 1, [&] {
        cr_assert_eq(f.wait(2), 0);
        woken++;
      });
      until_queued(&f, static_cast<size_t>(i) + 2);
    }
    interrupt(waits, kInterruptEnd);
    first.join();
    until_queued(&f, 2);  // they have looked, and wait again
    cr_assert(f.get() == 1 && woken == 0);
    f.postOne();
    while (woken != 1) give_way();
    cr_assert_eq(queued(&f), 1u);
    f.postOne();
  }
}

// All posts are counted and every count is seen, though some waits time out or are cancelled meanwhile.
void counts(uint64_t posters, uint64_t each, size_t waiters, size_t kernel) {
  const uint64_t all = posters * each + 1;
  FiberFutex f;
  std::vector<std::atomic<FiberRecord*>> users(waiters);
  std::atomic<long> cancelled{0};
  Threads t, p;
  for (size_t i = 0; i < waiters; i++) {
    auto body = [&, i] {
      users[i] = self();
      Random random{i};
      for (uint64_t token = 0; token < all;) {
        token = std::min(token + 1 + random(100), all);
        uint64_t before;
        int e;
        do {
          before = f.get();
          e = random(2) ? f.wait(token) : f.waitWithTimeout(token, random(100'000));
          if (e == ECANCELED) {
            cancelled++;
            forget_cancel();
          }
        } while (e == ECANCELED || e == ETIMEDOUT);
        cr_assert_eq(e, 0);
        cr_assert(f.get() >= token && before <= f.get());
      }
    };
    i < kernel ? t.kernel(body) : t.fiber(body);
  }
  for (auto& u : users)
    while (!u) give_way();
  for (uint64_t i = 0; i < posters; i++) {
    auto body = [&, i] {
      Random random{100 + i};
      for (uint64_t r = 0; r < each; r++) {
        random(4) ? f.post() : f.postOne();
        if (random(64) == 0) interrupt(users[random(static_cast<uint32_t>(waiters))], kInterruptEnd);
        if ((r + i) % 32 == 0) give_way();
      }
    };
    i < posters* kernel / waiters ? p.kernel(body) : p.fiber(body);
  }
  p.join();
  cr_assert_eq(f.get(), all - 1);
  // The waiters may all end only now, since the thread that cancels them has ended.
  interrupt(users[0], kInterruptEnd);
  while (!cancelled) give_way();
  f.post();
  t.join();
  cr_assert_eq(f.get(), all);
  cr_assert_eq(queued(&f), 0u);
}
Test(fiber_futex, no_post_is_missed, .timeout = 240) { counts(6, 10000, 16, 3); }

// One of two waiters is cancelled just when postOne() comes. It wakes the other one, or the cancelled one counts as woken.
void cancelled_beside_a_post(int rounds_wanted) {
  FiberFutex f;
  std::atomic<FiberRecord*> waits{nullptr};
  std::atomic<int> result{-1};
  std::atomic<int> woken{0}, go{0};
  Rounds rounds(4);
  Threads t;
  for (size_t who = 0; who < 4; who++) {
    auto body = [&, who] {
      Random random{who};
      if (who == 0) waits = self();
      for (int r = 1; r <= rounds_wanted; r++) {
        rounds.meet();
        const uint64_t token = f.get() + 1;
        rounds.meet();
        auto delay = [&] {
          while (go != r) give_way();
          for (uint32_t n = random(400); n; n--) asm volatile("");
        };
        if (who == 0) {
          result = f.wait(token);
        } else if (who == 1) {
          cr_assert_eq(f.wait(token), 0);
          woken = r;
        } else if (who == 2) {
          delay();
          f.postOne();
        } else {
          until_queued(&f, 2);
          go = r;
          delay();
          interrupt(waits, kInterruptEnd);
          while (result < 0) give_way();
          cr_assert(result == 0 || result == ECANCELED);
          if (result == 0) f.postOne();
          while (woken != r) give_way();
          result = -1;
        }
        rounds.meet();
        if (who == 0) forget_cancel();
      }
    };
    who % 2 ? t.kernel(body) : t.fiber(body);
  }
  t.join();
  cr_assert_eq(queued(&f), 0u);
}

// Half of the users are foreign threads.
void stress(unsigned workers, uint64_t seed) {
  use_chaos(workers, seed);
  counts(4, 400 * static_cast<uint64_t>(times()), 8, 4);
  cancelled_beside_a_post(300);
  counted(4 * 400L * times() + 5 * 300L, "posts and waits of futexes");
}
Test(fiber_futex, chaos_1_worker, .timeout = 240) { stress(1, 1); }
Test(fiber_futex, chaos_2_workers, .timeout = 240) { stress(2, 2); }
Test(fiber_futex, chaos_16_workers, .timeout = 240) { stress(16, 3); }

// A post that is not enough comes just when a thread has decided to wait. The post that is enough must still wake that thread.
Test(fiber_futex, posts_one_after_the_other_are_not_lost, .timeout = 240) {
  constexpr uint64_t kRounds = 60000;
  FiberFutex f;
  Rounds rounds(2);
  Threads t;
  for (bool posts : {false, true})
    t.kernel([&, posts] {
      Random random{posts};
      for (uint64_t r = 1; r <= kRounds; r++) {
        rounds.meet();
        for (int k = 0; k < 2; k++) {
          for (uint32_t delay = random(400); delay; delay--) asm volatile("");
          if (posts) r % 2 ? f.post() : f.postOne();
        }
        if (!posts) cr_assert_eq(f.wait(2 * r), 0);
      }
    });
  t.join();
  cr_assert_eq(f.get(), 2 * kRounds);
}

Test(fiber_futex, may_be_destroyed_when_a_wait_has_returned, .timeout = 240) {
  for (int round = 0; round < 4000; round++) {
    auto* f = new FiberFutex;
    Threads t;
    auto post = [f, round] { round % 2 ? f->post() : f->postOne(); };
    round % 8 == 0 ? t.kernel(post) : t.fiber(post);
    if (round % 3) give_way();
    cr_assert_eq(f->wait(1), 0);
    memset(static_cast<void*>(f), 0x5a, sizeof *f);
    delete f;
  }
}

// A post's last access to the futex comes before its waiter can go on. So another object at that address gets nothing of the post.
Test(fiber_futex, its_address_may_be_reused) {
  alignas(8) static unsigned char memory[8];
  static std::atomic<int> phase;
  phase = 0;
  constexpr int kRounds = 300;
  Threads t;
  t.kernel([] {
    for (int i = 0; i < kRounds; i++) {
      while (phase != 1) give_way();
      reinterpret_cast<FiberFutex*>(memory)->post();
      phase = 2;
    }
  });
  int spurious = 0;
  for (int i = 0; i < kRounds; i++) {
    auto* f = new (memory) FiberFutex;
    f->waitWithTimeout(1, 1);  // leaves the bit behind
    phase = 1;
    while (f->waitWithTimeout(1, 1) != 0) {
    }
    f->~FiberFutex();
    auto* s = new (memory) Semaphore(0);
    spurious += s->acquire_for(20000) == 0;
    s->~Semaphore();
    while (phase != 2) give_way();
    phase = 0;
  }
  t.join();
  cr_assert_eq(spurious, 0);
}

}  // namespace
