// SPDX-License-Identifier: MIT
// FiberMutex: exclusion, no waiter forgotten or starved, timeouts, and waiters that come from another queue.
// alone: sync
#include "fiberthread/fiber_mutex.h"

#include "tests/test.h"

#include <atomic>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>

#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(fiber_mutex, zeros_are_an_unlocked_mutex) {
  alignas(FiberMutex) unsigned char memory[sizeof(FiberMutex)] = {};
  auto& m = *reinterpret_cast<FiberMutex*>(memory);
  cr_assert_null(m.owner());
  cr_assert(m.try_lock());
  cr_assert_eq(m.owner(), self());
  cr_assert(!m.try_lock());
  m.unlock();
  m.unlock();  // unlocking a free mutex does nothing
  cr_assert_null(m.owner());
  m.lock();
  m.unlock();
  for (unsigned char c : memory) cr_assert_eq(c, 0);
}

void excludes(int threads, int kernel, int count) {
  FiberMutex m;
  long n = 0;
  Threads t;
  auto body = [&](int i) {
    Random random{static_cast<uint64_t>(i)};
    for (int r = 0; r < count; r++) {
      switch (random(8)) {
        case 0:
          while (!m.try_lock()) give_way();
          break;
        case 1:
          while (!m.try_lock_until(now_ns() + random(50'000))) {
          }
          break;
        default: m.lock();
      }
      cr_assert_eq(m.owner(), self());
      long seen = n;
      if (random(64) == 0) give_way();
      n = seen + 1;
      m.unlock();
    }
  };
  for (int i = 0; i < threads; i++) i < kernel ? t.kernel([&, i] { body(i); }) : t.fiber([&, i] { body(i); });
  t.join();
  cr_assert_eq(n, long{threads} * count);
  cr_assert_null(m.owner());
  cr_assert_eq(queued(&m), 0u);
}
Test(fiber_mutex, excludes_fibers_and_kernel_threads, .timeout = 240) { excludes(20, 4, 20000); }

// Half of the users are foreign threads.
void stress(unsigned workers, uint64_t seed) {
  use_chaos(workers, seed);
  excludes(12, 6, 600 * times());
  counted(long{12} * 600 * times(), "locks of mutexes");
}
Test(fiber_mutex, chaos_1_worker, .timeout = 240) { stress(1, 1); }
Test(fiber_mutex, chaos_2_workers, .timeout = 240) { stress(2, 2); }
Test(fiber_mutex, chaos_16_workers, .timeout = 240) { stress(16, 3); }

// The mutex becomes free, and another thread takes it, just when a thread has decided to wait.
Test(fiber_mutex, waiter_that_comes_as_it_changes_hands_is_not_lost, .timeout = 240) {
  constexpr int kRounds = 100000;
  FiberMutex m;
  Rounds rounds(3);
  Threads t;
  for (int i = 0; i < 3; i++) {
    auto body = [&, i] {
      Random random{static_cast<uint64_t>(i)};
      for (int r = 0; r < kRounds; r++) {
        rounds.meet();
        for (int k = 0; k < 3; k++) {
          for (uint32_t delay = random(60); delay; delay--) asm volatile("");
          m.lock();
          for (uint32_t delay = random(40); delay; delay--) asm volatile("");
          m.unlock();
        }
      }
    };
    t.kernel(body);
  }
}

void gives_up(FiberMutex& m) {
  for (uint64_t ms : {0, 1, 15}) {
    uint64_t deadline = now_ns() + ms * kMs;
    cr_assert(!m.try_lock_until(deadline));
    cr_assert(now_ns() >= deadline);
    cr_assert_neq(m.owner(), self());
  }
}

Test(fiber_mutex, gives_up_in_time_but_not_early) {
  FiberMutex m;
  m.lock();
  {
    Threads t;
    t.kernel([&] { gives_up(m); });
    t.fiber([&] { gives_up(m); });
  }
  cr_assert_eq(queued(&m), 0u);
  m.unlock();                      // the bit of the ended waits is left over
  cr_assert(m.try_lock_until(0));  // tries at least once
  m.unlock();
}

// The bit is clear while a woken waiter is on its way. A thread that takes the lock meanwhile must still wake the others.
Test(fiber_mutex, waiters_behind_one_that_gives_up_are_not_forgotten, .timeout = 240) {
  FiberMutex m;
  std::atomic<int> done{0};
  constexpr int kThreads = 16;
  Threads t;
  for (int i = 0; i < kThreads; i++) {
    auto body = [&, i] {
      Random random{static_cast<uint64_t>(i)};
      for (int r = 0; r < 3000; r++) {
        bool patient = i % 2;
        if (patient) m.lock();
        else if (!m.try_lock_until(now_ns() + random(20'000))) continue;
        if (random(4) == 0) give_way();
        m.unlock();
      }
      done++;
    };
    i < 4 ? t.kernel(body) : t.fiber(body);
  }
  t.join();
  cr_assert_eq(done, kThreads);
  cr_assert_eq(queued(&m), 0u);
}

Test(fiber_mutex, waiter_is_not_starved_by_one_that_always_holds_it, .timeout = 240) {
  for (bool kernel : {false, true}) {
    FiberMutex m;
    std::atomic<int> left{3};
    Threads t;
    auto hog = [&] {
      while (left > 0) {
        m.lock();
        for (uint64_t until = now_ns() + kMs / 10; now_ns() < until;) {
        }
        m.unlock();
      }
    };
    kernel ? t.kernel(hog) : t.fiber(hog);
    while (!m.owner()) give_way();
    for (int i = 0; i < 3; i++)
      t.fiber([&] {
        m.lock();
        left--;
        m.unlock();
      });
  }
}

Test(fiber_mutex, may_be_unlocked_by_another) {
  FiberMutex m;
  m.lock();
  std::atomic<bool> got{false};
  Threads t;
  t.fiber([&] {
    m.lock();
    got = true;
    m.unlock();
  });
  until_queued(&m, 1);
  t.fiber([&] { m.unlock(); });
  t.join();
  cr_assert(got);
}

// A condition variable moves waiters here. They come with their tokens.
Test(fiber_mutex, waiters_moved_to_it_get_it_one_after_the_other) {
  FiberMutex m;
  char condition;
  int inside = 0, n = 0;
  for (int round = 0; round < 200; round++) {
    bool held = round % 2;
    int expected = n + 8;
    Threads t;
    for (int i = 0; i < 8; i++) {
      auto body = [&] {
        FiberRecord* me = self();
        Waiter w;
        w.requeue_to = &m;
        m.lock();
        cr_assert(park(&condition, w, [] { return true; }, [&] { m.unlock(me); }, {"test"}) == WakeReason::Woken);
        m.relock(me, w.token);
        cr_assert_eq(m.owner(), me);
        cr_assert_eq(inside++, 0);
        give_way();
        inside--;
        n++;
        m.unlock();
      };
      i < 1 ? t.kernel(body) : t.fiber(body);
    }
    until_queued(&condition, 8);
    if (held) m.lock();
    auto may_move = [](void* p) { return static_cast<FiberMutex*>(p)->expect_waiters(); };
    cr_assert_eq(requeue_waiters(&condition, &m, may_move, &m), 8u);
    if (held) {
      cr_assert_eq(queued(&m), 8u);
      m.unlock();
    }
    t.join();
    cr_assert_eq(n, expected);
  }
  cr_assert(!m.expect_waiters());
  cr_assert_null(m.owner());
}

// The last user to unlock it frees it, as with a reference count under the mutex.
Test(fiber_mutex, is_not_touched_after_it_was_unlocked, .timeout = 240) {
  struct Object {
    FiberMutex m;
    int references = 6;
  };
  for (int round = 0; round < 2000; round++) {
    auto* o = new Object;
    Threads t;
    for (int i = 0; i < 6; i++) {
      auto body = [o] {
        o->m.lock();
        bool last = --o->references == 0;
        if (o->references % 2) give_way();
        o->m.unlock();
        if (last) {
          memset(static_cast<void*>(o), 0x5a, sizeof *o);
          delete o;
        }
      };
      i == 0 && round % 8 == 0 ? t.kernel(body) : t.fiber(body);
    }
  }
}

}  // namespace
