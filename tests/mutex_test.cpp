// SPDX-License-Identifier: MIT
// Mutex and ConditionVariable: exclusion and FIFO order, deadlines and cancellation. No waiter and no notification is forgotten.
// alone: sync
#include "fiberthread/mutex.h"

#include "tests/test.h"

#include <errno.h>
#include <string.h>

#include <atomic>
#include <condition_variable>
#include <initializer_list>
#include <mutex>
#include <vector>

#include "fiberthread/deadline.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

using Lock = std::unique_lock<Mutex>;

// Looks at the state of the fiber, since a Mutex has no queue to look at.
bool parked(FiberRecord* f) { return f && f->run.state.load() == State::Parked; }
void until_parked(std::atomic<FiberRecord*>& f) {
  while (!parked(f)) give_way();
}

Test(mutex, zeros_are_an_unlocked_mutex) {
  alignas(Mutex) unsigned char memory[sizeof(Mutex)] = {};
  auto& m = *reinterpret_cast<Mutex*>(memory);
  cr_assert(m.try_lock());
  cr_assert(!m.try_lock());
  m.unlock();
  m.lock();
  m.unlock();
  for (unsigned char c : memory) cr_assert_eq(c, 0);
}

Test(mutex, is_lockable_as_the_standard_has_it) {
  Mutex a, b;
  {
    std::lock_guard<Mutex> guard(a);
    cr_assert(!a.try_lock());
    Lock no(a, std::try_to_lock);
    cr_assert(!no.owns_lock());
  }
  {
    std::scoped_lock both(a, b);
    cr_assert(!a.try_lock() && !b.try_lock());
  }
  std::condition_variable_any any;
  bool ready = false;
  Threads t;
  t.fiber([&] {
    Lock l(a);
    any.wait(l, [&] { return ready; });
  });
  t.kernel([&] {
    std::lock_guard<Mutex> l(a);
    ready = true;
    any.notify_all();
  });
  t.join();
  cr_assert(a.try_lock());
  a.unlock();
}

Test(mutex, excludes_fibers_and_kernel_threads, .timeout = 120) {
  constexpr int kThreads = 16;
  const int kRounds = chaos_rounds(4000);
  Mutex m;
  long n = 0;
  Threads t;
  for (int i = 0; i < kThreads; i++) {
    auto body = [&, i] {
      Random random{static_cast<uint64_t>(i)};
      for (int r = 0; r < kRounds; r++) {
        if (random(8)) m.lock();
        else
          while (!m.try_lock()) give_way();
        long seen = n;
        if (random(64) == 0) give_way();
        n = seen + 1;
        m.unlock();
      }
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
  t.join();
  cr_assert_eq(n, long{kThreads} * kRounds);
}

// Each thread comes when those before it are queued.
Test(mutex, is_handed_over_in_the_order_of_arrival) {
  for (int round = 0; round < 50; round++) {
    constexpr int kThreads = 9;
    Mutex m;
    std::vector<int> order;
    std::atomic<FiberRecord*> waits[kThreads] = {};
    m.lock();
    Threads t;
    for (int i = 0; i < kThreads; i++) {
      auto body = [&, i] {
        waits[i] = self();
        m.lock();
        order.push_back(i);
        if (round % 2) give_way();
        m.unlock();
      };
      i % 3 == 2 ? t.kernel(body) : t.fiber(body);
      until_parked(waits[i]);
      if (i == 4) {  // the owner has put these waiters in order already when the others come
        m.unlock();
        m.lock();
      }
    }
    m.unlock();
    t.join();
    cr_assert_eq(order.size(), size_t{kThreads});
    for (int i = 0; i < kThreads; i++) cr_assert_eq(order[static_cast<size_t>(i)], i);
  }
}

// No other thread can come in between. The mutex belongs to the waiter from the unlock on.
Test(mutex, is_not_free_between_two_owners) {
  Mutex m;
  std::atomic<FiberRecord*> waits{nullptr};
  std::atomic<bool> leave{false};
  m.lock();
  Threads t;
  t.fiber([&] {
    waits = self();
    m.lock();
    while (!leave) give_way();
    m.unlock();
  });
  until_parked(waits);
  m.unlock();
  cr_assert(!m.try_lock());
  leave = true;
}

Test(mutex, waiter_that_comes_as_it_changes_hands_is_not_lost, .timeout = 120) {
  const int kRounds = chaos_rounds(20000);
  Mutex m;
  Rounds rounds(3);
  Threads t;
  for (int i = 0; i < 3; i++) {
    t.kernel([&, i] {
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
    });
  }
}

Test(mutex, may_be_unlocked_by_another) {
  Mutex m;
  m.lock();
  Threads t;
  t.fiber([&] { m.unlock(); });
  m.lock();
  m.unlock();
}

Test(mutex, is_not_touched_after_it_was_unlocked, .timeout = 120) {
  struct Object {
    Mutex m;
    int references = 6;
  };
  for (int round = 0; round < chaos_rounds(1000); round++) {
    auto* o = new Object;
    Threads t;
    for (int i = 0; i < 6; i++) {
      auto body = [o] {
        o->m.lock();
        bool last = --o->references == 0;
        if (o->references % 2) give_way();
        o->m.unlock();
        if (last) {
          o->~Object();
          memset(static_cast<void*>(o), 0x5a, sizeof *o);
          operator delete(o);
        }
      };
      i == 0 && round % 8 == 0 ? t.kernel(body) : t.fiber(body);
    }
  }
}

Test(mutex, lock_is_not_ended_by_cancellation) {
  Mutex m;
  m.lock();
  std::atomic<FiberRecord*> waits{nullptr};
  bool got = false;
  Threads t;
  t.fiber([&] {
    waits = self();
    m.lock();
    got = true;
    m.unlock();
    self()->run.interrupts.fetch_and(~uint32_t{kInterruptEnd});
  });
  until_parked(waits);
  interrupt(waits, kInterruptEnd);
  for (int i = 0; i < 100; i++) give_way();
  cr_assert(!got);
  m.unlock();
  t.join();
  cr_assert(got);
}

// ---- ConditionVariable ----

Test(condition_variable, wait_gives_the_mutex_up_and_returns_with_it) {
  for (bool kernel : {false, true}) {
    Mutex m;
    ConditionVariable c;
    bool waits = false, ready = false;
    Threads t;
    auto body = [&] {
      m.lock();
      waits = true;
      cr_assert_eq(c.wait(m, [&] { return ready; }), 0);
      cr_assert(!m.try_lock());
      m.unlock();
    };
    kernel ? t.kernel(body) : t.fiber(body);
    for (bool seen = false; !seen; give_way()) {
      m.lock();
      seen = waits;
      m.unlock();
    }
    m.lock();
    ready = true;
    c.notify_one();
    m.unlock();
  }
}

Test(condition_variable, goes_with_unique_lock) {
  Mutex m;
  ConditionVariable c;
  bool waits = false, ready = false;
  Threads t;
  t.fiber([&] {
    Lock l(m);
    cr_assert_eq(c.wait_for(l, 1), ETIMEDOUT);
    cr_assert_eq(c.wait_until(l, 1, [&] { return false; }), ETIMEDOUT);
    waits = true;  // from now on the fiber waits for a notification
    cr_assert_eq(c.wait(l, [&] { return ready; }), 0);
    cr_assert(l.owns_lock());
  });
  t.kernel([&] {
    Lock l(m);
    while (!waits) {
      l.unlock();
      give_way();
      l.lock();
    }
    ready = true;
    c.notify_all();
  });
}

Test(condition_variable, notify_one_wakes_one_and_notify_all_all) {
  Mutex m;
  ConditionVariable c;
  constexpr int kThreads = 9;
  std::atomic<int> woken{0};
  Threads t;
  for (int i = 0; i < kThreads; i++) {
    auto body = [&] {
      m.lock();
      cr_assert_eq(c.wait(m), 0);
      woken++;
      m.unlock();
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
  until_queued(&c, kThreads);
  for (int i = 1; i <= 3; i++) {
    c.notify_one();
    until_queued(&c, static_cast<size_t>(kThreads - i));
    while (woken != i) give_way();
  }
  m.lock();
  c.notify_all();  // all waiters are now queued for the mutex, which is held
  cr_assert_eq(queued(&c), 0u);
  for (int i = 0; i < 50; i++) give_way();
  cr_assert_eq(woken, 3);
  m.unlock();
  t.join();
  cr_assert_eq(woken, kThreads);
  c.notify_one();  // without waiters this does nothing
  c.notify_all();
}

Test(condition_variable, wait_gives_up_in_time_but_not_early) {
  for (bool kernel : {false, true}) {
    Mutex m;
    ConditionVariable c;
    Threads t;
    auto body = [&] {
      for (uint64_t ms : {0, 1, 15}) {
        uint64_t deadline = now_ns() + ms * kMs;
        m.lock();
        cr_assert_eq(c.wait_until(m, deadline), ETIMEDOUT);
        cr_assert(now_ns() >= deadline);
        cr_assert_eq(c.wait_for(m, ms * kMs, [] { return false; }), ETIMEDOUT);
        cr_assert(now_ns() >= deadline + ms * kMs);
        cr_assert(!m.try_lock());
        m.unlock();
      }
    };
    kernel ? t.kernel(body) : t.fiber(body);
    t.join();
    cr_assert_eq(queued(&c), 0u);
    c.notify_one();
  }
}

Test(condition_variable, predicate_that_became_true_counts_more_than_the_deadline) {
  Mutex m;
  ConditionVariable c;
  int asked = 0;
  m.lock();
  cr_assert_eq(c.wait_for(m, 1, [&] { return asked++ > 0; }), 0);
  cr_assert_eq(asked, 2);
  m.unlock();
}

Test(condition_variable, cancellation_ends_a_wait_with_the_mutex_held) {
  Mutex m;
  ConditionVariable c;
  std::atomic<FiberRecord*> waits{nullptr};
  Threads t;
  t.fiber([&] {
    waits = self();
    m.lock();
    cr_assert_eq(c.wait(m), ECANCELED);
    cr_assert(!m.try_lock());
    cr_assert_eq(c.wait(m, [] { return false; }), ECANCELED);  // the end reason stays
    cr_assert_eq(c.wait(m, [] { return true; }), 0);
    m.unlock();
    self()->run.interrupts.fetch_and(~uint32_t{kInterruptEnd});
  });
  until_queued(&c, 1);
  interrupt(waits, kInterruptEnd);
  t.join();
  cr_assert_eq(queued(&c), 0u);
}

// A notification comes just when a thread has decided to wait.
Test(condition_variable, no_notification_is_missed, .timeout = 120) {
  const int kRounds = chaos_rounds(3000);
  Mutex m;
  ConditionVariable c;
  int turn = 0;
  Threads t;
  for (int i = 0; i < 4; i++) {
    auto body = [&, i] {
      for (int r = 0; r < kRounds; r++) {
        m.lock();
        cr_assert_eq(c.wait(m, [&] { return turn % 4 == i; }), 0);
        turn++;
        c.notify_all();
        m.unlock();
      }
    };
    i == 1 ? t.kernel(body) : t.fiber(body);
  }
  t.join();
  cr_assert_eq(turn, 4 * kRounds);
}

// A bounded queue. If a timed wait gives up on an item, another thread takes that item.
Test(condition_variable, timed_waits_lose_nothing, .timeout = 120) {
  const long kItems = chaos_rounds(30000);
  Mutex m;
  ConditionVariable not_empty, not_full;
  long inside = 0, put = 0;
  std::atomic<long> taken{0};
  Threads t;
  for (int i = 0; i < 4; i++) {
    auto putter = [&] {
      for (;;) {
        m.lock();
        while (inside == 3) not_full.wait_for(m, 50'000);
        if (put == kItems) break;
        put++;
        inside++;
        not_empty.notify_one();
        m.unlock();
      }
      m.unlock();
    };
    auto taker = [&, i] {
      Random random{static_cast<uint64_t>(i)};
      while (taken < kItems) {
        m.lock();
        if (not_empty.wait_for(m, random(100'000), [&] { return inside > 0; }) == 0) {
          inside--;
          taken++;
          not_full.notify_one();
        }
        m.unlock();
      }
    };
    i % 2 ? t.kernel(putter) : t.fiber(putter);
    i / 2 ? t.kernel(taker) : t.fiber(taker);
  }
  t.join();
  cr_assert_eq(inside, 0);
  cr_assert_eq(taken, kItems);
}

Test(condition_variable, may_be_destroyed_when_all_are_notified, .timeout = 120) {
  struct Object {
    Mutex m;
    ConditionVariable c;
  };
  Mutex m;
  for (int round = 0; round < chaos_rounds(2000); round++) {
    auto* c = new ConditionVariable;
    bool waits = false;
    Threads t;
    auto body = [&] {
      m.lock();
      waits = true;
      c->wait(m);
      m.unlock();
    };
    round % 8 == 0 ? t.kernel(body) : t.fiber(body);
    for (bool seen = false; !seen; give_way()) {
      m.lock();
      seen = waits;
      if (seen) {
        round % 2 ? c->notify_one() : c->notify_all();
        c->~ConditionVariable();
        memset(static_cast<void*>(c), 0x5a, sizeof *c);
        operator delete(c);
      }
      m.unlock();
    }
  }
}

}  // namespace
