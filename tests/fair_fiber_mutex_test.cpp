// SPDX-License-Identifier: MIT
// FairFiberMutex: it excludes, strictly in the order of the calls. A ticket that is given up passes the mutex on.
// alone: sync
#include "fiberthread/fair_fiber_mutex.h"

#include "tests/test.h"

#include <errno.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>

#include "fiberthread/fiber_mutex.h"
#include "tests/linearize.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

using Future = FairFiberMutex::Future;

Test(fair_fiber_mutex, locks) {
  FairFiberMutex m;
  cr_assert(m.try_lock());
  cr_assert(!m.try_lock());
  cr_assert_eq(m.lock_until(0), ETIMEDOUT);
  m.unlock();
  m.unlock();  // unlocking a free mutex does nothing
  m.lock();
  cr_assert(!m.try_lock());
  m.unlock();
  cr_assert_eq(m.lock_until(0), 0);  // tries at least once
  m.unlock();
  Future f;
  m.lock(&f);
  cr_assert(f.isSet() && f.error() == 0);  // the mutex is free, so this returns at once
  cr_assert(!f.cancel());
  cr_assert(!m.try_lock());
  m.unlock();
}

Test(fair_fiber_mutex, fits_the_standard_guards) {
  FairFiberMutex fair;
  FiberMutex plain;
  std::condition_variable_any changed;
  int n = 0;
  Threads t;
  for (int i = 0; i < 6; i++)
    t.fiber([&, i] {
      std::unique_lock<FairFiberMutex> lock(fair);
      while (n != i) changed.wait(lock);
      n++;
      changed.notify_all();
    });
  t.join();
  std::atomic<int> m{0};
  for (int i = 0; i < 6; i++)
    t.fiber([&, i] {
      std::unique_lock<FiberMutex> lock(plain);
      while (m != i) changed.wait(lock);
      m++;
      changed.notify_all();
    });
  t.join();
  std::lock_guard<FairFiberMutex> a(fair);
  std::lock_guard<FiberMutex> b(plain);
  std::unique_lock<FairFiberMutex> c(fair, std::try_to_lock);
  cr_assert(!c.owns_lock());
  cr_assert(n == 6 && m == 6);
}

// Asynchronous locks by tickets. Each future is set in its turn and not before. Futures that were given up are passed over.
Test(fair_fiber_mutex, strictly_in_the_order_of_tickets) {
  Random random{3};
  for (int round = 0; round < 200; round++) {
    constexpr int kMany = 40;
    FairFiberMutex m;
    Future f[kMany];
    bool cancelled[kMany] = {};
    m.lock();
    for (int i = 0; i < kMany; i++) {
      m.lock(&f[i]);
      cr_assert(!f[i].isSet());
      cr_assert(!m.try_lock());
    }
    auto cancel_some = [&](int from) {
      for (int i = from; i < kMany; i++)
        if (!cancelled[i] && random(8) == 0) {
          cr_assert(f[i].cancel());
          cr_assert_eq(f[i].error(), ECANCELED);
          cancelled[i] = true;
        }
    };
    cancel_some(0);
    for (int i = 0; i < kMany; i++) {
      if (cancelled[i]) continue;
      m.unlock();
      cr_assert(f[i].isSet() && f[i].error() == 0);
      for (int k = i + 1; k < kMany; k++) cr_assert_eq(f[k].isSet(), cancelled[k]);
      cr_assert(!f[i].cancel());
      cancel_some(i + 1);
    }
    m.unlock();
    cr_assert(m.try_lock());
    m.unlock();
  }
}

Test(fair_fiber_mutex, waiters_of_each_kind_in_order) {
  FairFiberMutex m;
  std::vector<int> order;
  m.lock();
  Threads t;
  for (int i = 0; i < 12; i++) {
    std::atomic<FiberRecord*> who{nullptr};
    t.any(static_cast<size_t>(i), [&, i] {
      who = self();
      m.lock();
      order.push_back(i);
      m.unlock();
    });
    while (!who) give_way();
    until_parked(who);
  }
  m.unlock();
  t.join();
  for (int i = 0; i < 12; i++) cr_assert_eq(order[static_cast<size_t>(i)], i);
}

Test(fair_fiber_mutex, gives_up_in_time_and_when_cancelled) {
  FairFiberMutex m;
  m.lock();
  for (size_t kind = 0; kind < 3; kind++) {
    std::atomic<FiberRecord*> who{nullptr};
    std::atomic<bool> got{false};
    Threads t;
    t.any(kind, [&] {
      for (uint64_t ms : {0, 1, 15}) {
        uint64_t deadline = now_ns() + ms * kMs;
        cr_assert_eq(m.lock_until(deadline), ETIMEDOUT);
        cr_assert(now_ns() >= deadline);
        deadline = now_ns() + ms * kMs;
        cr_assert_eq(m.lock_for(ms * kMs), ETIMEDOUT);
        cr_assert(now_ns() >= deadline);
      }
      who = self();
      cr_assert_eq(m.lock_until(kForever), ECANCELED);
      m.lock();  // cancellation does not end this
      got = true;
      forget_cancel();
      m.unlock();
    });
    while (!who) give_way();
    until_parked(who);
    cr_assert(!got);
    interrupt(who, kInterruptEnd);
    for (int i = 0; i < 100; i++) give_way();
    until_parked(who);
    cr_assert(!got);
    m.unlock();
    t.join();
    m.lock();
  }
}

// The mutex excludes and forgets no waiter, whatever is given up. The last user to unlock it frees it. Half of the users are foreign
// threads.
void excludes(uint32_t workers, uint64_t seed) {
  use_chaos(workers, seed);
  struct Object {
    FairFiberMutex m;
    int references = 8;
    long n = 0;
  };
  long taken = 0, all = 0;
  Pieces<Object> pieces;
  for (int round = 0; round < 12 * times(); round++) {
    Object* o = pieces.make();
    std::atomic<long> locked{0}, given_up{0};
    long counted = 0;
    Threads t;
    for (int i = 0; i < 8; i++) {
      auto body = [&, i] {
        Random random{static_cast<uint64_t>(round * 8 + i)};
        for (int r = 0; r < 100; r++) {
          bool mine = true;
          switch (random(5)) {
            case 0:
              while (!o->m.try_lock()) give_way();
              break;
            case 1: mine = o->m.lock_for(random(50'000)) == 0; break;
            case 2: {
              Future f;
              o->m.lock(&f);
              for (uint32_t delay = random(2000); delay; delay--) asm volatile("");
              mine = random(2) ? f.wait() == 0 : !f.cancel();
              break;
            }
            default: o->m.lock();
          }
          if (!mine) {
            given_up++;
            continue;
          }
          long seen = o->n;
          if (random(32) == 0) give_way();
          o->n = seen + 1;
          locked++;
          o->m.unlock();
        }
        o->m.lock();
        bool last = --o->references == 0;
        if (last) counted = o->n;
        o->m.unlock();
        if (last) pieces.destroy(o);
      };
      i % 2 ? t.kernel(body) : t.fiber(body);
    }
    t.join();
    cr_assert_eq(counted, locked);
    taken += given_up;
    all += locked + given_up;
  }
  cr_assert(taken > 0);
  counted(all, "locks of fair mutexes");
}

Test(fair_fiber_mutex, chaos_1_worker, .timeout = 240) { excludes(1, 1); }
Test(fair_fiber_mutex, chaos_2_workers, .timeout = 240) { excludes(2, 2); }
Test(fair_fiber_mutex, chaos_16_workers, .timeout = 240) { excludes(16, 3); }

// A thread asks for the mutex just as the mutex is handed over. No later request could make up for a lost wake-up.
Test(fair_fiber_mutex, request_that_comes_as_it_changes_hands_is_not_lost, .timeout = 240) {
  use_chaos(2, 6);
  constexpr int kThreads = 4, kRounds = 20000;
  FairFiberMutex m;
  Rounds rounds(kThreads);
  Threads t;
  for (int i = 0; i < kThreads; i++)
    t.kernel([&, i] {
      Random random{static_cast<uint64_t>(i)};
      Future f;
      for (int r = 0; r < kRounds; r++) {
        if (i == 0) m.lock();
        rounds.meet();
        if (i == 1) m.lock(&f);
        rounds.meet();  // one thread owns it, one stands in line, two are about to come
        for (uint32_t delay = random(i ? 200 : 100); delay; delay--) asm volatile("");
        if (i == 1) cr_assert_eq(f.wait(), 0);
        if (i > 1) m.lock();
        m.unlock();
        rounds.meet();
      }
    });
}

// ---- histories ----

struct Call {
  enum { Ask, Get, Release, Try, GiveUp, Nothing } what;
  int ticket;
};
// The model: the queue of tickets, and whether the mutex is held.
struct Fair {
  std::deque<int> queue;
  bool held = false;
  bool apply(const Call& c) {
    switch (c.what) {
      case Call::Ask: queue.push_back(c.ticket); return true;
      case Call::Get:
        if (held || queue.empty() || queue.front() != c.ticket) return false;
        queue.pop_front();
        return held = true;
      case Call::Release:
        if (!held) return false;
        held = false;
        return true;
      case Call::Try:
        if (held || !queue.empty()) return false;
        return held = true;
      case Call::GiveUp:
        for (auto it = queue.begin(); it != queue.end(); ++it)
          if (*it == c.ticket) {
            queue.erase(it);
            return true;
          }
        return false;
      default: return true;
    }
  }
  std::string key() const {
    std::string k = held ? "held " : "";
    for (int i : queue) k += std::to_string(i) + ',';
    return k;
  }
};

void history_is_linearizable(uint32_t workers, uint64_t seed) {
  use_chaos(workers, seed);
  constexpr int kUsers = 6, kCalls = 8, kRounds = 60, kMostRounds = 600;
  long gets = 0, tries = 0, given_up = 0;
  auto seen = [&] { return gets > 100 && tries > 10 && given_up > 10; };
  // Where threads hardly run side by side, one kind of call may hardly ever succeed. Then there are more rounds.
  for (int round = 0; round < kRounds || (!seen() && round < kMostRounds); round++) {
    FairFiberMutex m;
    // Each user has two lines in the history: what the user asks for, and what the mutex then does about it.
    History<Call> history(2 * kUsers);
    Threads t;
    for (int u = 0; u < kUsers; u++) {
      auto body = [&, u] {
        Random random{static_cast<uint64_t>(round * kUsers + u)};
        auto mine = static_cast<size_t>(2 * u), its = mine + 1;
        for (int c = 0; c < kCalls; c++) {
          int ticket = u * kCalls + c;
          bool got = true;
          if (random(4) == 0) {
            got = history.run(mine, [&] { return Call{m.try_lock() ? Call::Try : Call::Nothing, 0}; }).what == Call::Try;
          } else {
            Future f;
            Call end = history.run(its, [&] {
              history.run(mine, [&] {
                m.lock(&f);
                return Call{Call::Ask, ticket};
              });
              for (uint32_t delay = random(1000); delay; delay--) asm volatile("");
              int e = random(3) == 0 && f.cancel() ? ECANCELED : f.wait();
              return Call{e ? Call::GiveUp : Call::Get, ticket};
            });
            got = end.what == Call::Get;
          }
          if (!got) continue;
          for (uint32_t delay = random(1000); delay; delay--) asm volatile("");
          history.run(mine, [&] {
            m.unlock();
            return Call{Call::Release, 0};
          });
        }
      };
      u % 2 ? t.kernel(body) : t.fiber(body);
    }
    t.join();
    auto calls = history.calls();
    for (const auto& c : calls) {
      gets += c.call.what == Call::Get;
      tries += c.call.what == Call::Try;
      given_up += c.call.what == Call::GiveUp;
    }
    cr_assert(linearizable<Fair>(calls));
  }
  cr_assert(seen());
}

Test(fair_fiber_mutex, chaos_history_1_worker, .timeout = 240) { history_is_linearizable(1, 1); }
Test(fair_fiber_mutex, chaos_history_2_workers, .timeout = 240) { history_is_linearizable(2, 2); }
Test(fair_fiber_mutex, chaos_history_16_workers, .timeout = 240) { history_is_linearizable(16, 3); }

}  // namespace
