// SPDX-License-Identifier: MIT
// FiberSequencer: counts only grow, and each waiter is woken in order when its count has come. A wait that is given up leaves nothing.
// alone: sync
#include "fiberthread/fiber_sequencer.h"

#include "tests/test.h"

#include <errno.h>

#include <atomic>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>

#include "fiberthread/fiber_event.h"
#include "tests/linearize.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

using Future = FiberSequencer::Future;

// Notes in which order futures wake, and with which error.
struct Noted : SubscribeCallback {
  std::vector<int>* order;
  int number = 0, error = -1;
  Noted()
      : SubscribeCallback{[](SubscribeCallback* self, int e) {
          auto* me = static_cast<Noted*>(self);
          me->error = e;
          me->order->push_back(me->number);
        }} {}
};

Test(fiber_sequencer, counts) {
  alignas(FiberSequencer) unsigned char memory[sizeof(FiberSequencer)] = {};
  auto& s = *reinterpret_cast<FiberSequencer*>(memory);
  cr_assert_eq(s.get(), 0u);
  cr_assert_eq(s.increment(), 1u);
  cr_assert_eq(s.advance(5), 5u);
  cr_assert_eq(s.advance(3), 5u);  // reached already
  cr_assert_eq(s.increment(), 6u);
  cr_assert_eq(s.get(), 6u);
  cr_assert_eq(s.wait(0), 0);
  cr_assert_eq(s.wait(6), 0);
  cr_assert_eq(s.waitUntil(6, 0), 0);
  cr_assert_eq(s.waitWithTimeout(6, 0), 0);
  cr_assert_eq(s.waitUntil(7, 0), ETIMEDOUT);
  cr_assert_eq(s.advance(~uint64_t{0}), FiberSequencer::kLast);
  cr_assert_eq(s.increment(), FiberSequencer::kLast + 1);
}

Test(fiber_sequencer, wakes_each_kind_by_each_kind, .timeout = 240) {
  for (size_t waiter = 0; waiter < 3; waiter++)
    for (size_t poster = 0; poster < 3; poster++) {
      FiberSequencer s;
      std::atomic<int> woken{0};
      int before = 0;
      FiberRecord* who[3] = {};
      std::atomic<int> known{0};
      Threads t;
      for (uint64_t i = 1; i <= 3; i++)
        t.any(waiter, [&, i] {
          who[i - 1] = self();
          known++;
          cr_assert_eq(s.wait(2 * i), 0);
          cr_assert(before >= 1 && s.get() >= 2 * i);
          woken++;
        });
      t.any(poster, [&] {
        while (known != 3) give_way();
        for (auto* w : who) until_parked(w);
        before = 1;
        cr_assert_eq(s.increment(), 1u);
        cr_assert_eq(woken, 0);
        cr_assert_eq(s.advance(3), 3u);
        while (woken != 1) give_way();
        cr_assert_eq(s.increment(), 4u);
        while (woken != 2) give_way();
        cr_assert_eq(s.advance(9), 9u);
      });
      t.join();
      cr_assert_eq(woken, 3);
    }
}

Test(fiber_sequencer, wakes_in_the_order_of_tokens_and_of_arrival) {
  FiberSequencer s;
  const uint64_t tokens[] = {5, 3, 5, 1, 3, 9, 5};
  std::vector<int> order;
  Future f[7];
  Noted noted[7];
  for (int i = 0; i < 7; i++) {
    noted[i].order = &order;
    noted[i].number = i;
    s.wait(tokens[i], &f[i]);
    cr_assert(!f[i].isSet());
    cr_assert_eq(f[i].subscribe(&noted[i]), 0);
  }
  s.advance(6);
  cr_assert(order == std::vector<int>({3, 1, 4, 0, 2, 6}));
  s.advance(9);
  cr_assert_eq(order.back(), 5);
  Future now;
  s.wait(9, &now);  // the count is reached already, so the future is set at once
  cr_assert(now.isSet() && now.error() == 0);
}

Test(fiber_sequencer, cancel) {
  FiberSequencer s;
  Future f, g, h, never;
  cr_assert(!never.cancel());
  s.wait(2, &f);
  s.wait(2, &g);
  s.wait(1, &h);
  cr_assert(f.cancel());
  cr_assert(f.isSet() && f.error() == ECANCELED);
  cr_assert(f.cancel());  // it still is cancelled
  s.increment();
  cr_assert(h.isSet() && h.error() == 0);
  cr_assert(!h.cancel());  // too late
  cr_assert_eq(h.wait(), 0);
  s.increment();
  cr_assert_eq(g.wait(), 0);
  cr_assert_eq(f.wait(), ECANCELED);
  s.wait(2, &f);  // a new wait resets the future, and its count has come
  cr_assert(f.isSet() && f.error() == 0);
  cr_assert(!f.cancel());
  f.reset();
  cr_assert(!f.cancel());
  s.wait(3, &f);
  cr_assert(!f.isSet());
  std::atomic<FiberRecord*> who{nullptr};
  Threads t;
  t.fiber([&] {
    who = self();
    cr_assert_eq(f.wait(), ECANCELED);
  });
  while (!who) give_way();
  until_parked(who);
  cr_assert(f.cancel());  // another thread waits for the future
}

// Compares random tokens, advances and cancels with a simple table.
Test(fiber_sequencer, table_of_many) {
  Random random{1};
  for (int round = 0; round < 60; round++) {
    constexpr int kMany = 600;
    FiberSequencer s;
    std::unique_ptr<Future[]> f(new Future[kMany]);
    std::unique_ptr<Noted[]> noted(new Noted[kMany]);
    std::vector<int> order;
    std::multimap<uint64_t, int> waiting;
    uint32_t span = round % 3 == 0 ? 10 : 1000;
    int begun = 0;
    while (begun < kMany || !waiting.empty()) {
      uint32_t what = random(16);
      if (what < 10 && begun < kMany) {
        int i = begun++;
        uint64_t token = s.get() + 1 + (round % 3 == 2 ? static_cast<uint64_t>(i) : random(span));
        noted[i].order = &order;
        noted[i].number = i;
        s.wait(token, &f[i]);
        f[i].subscribe(&noted[i]);
        waiting.emplace(token, i);
      } else if (what < 14 && !waiting.empty()) {
        auto it = waiting.begin();
        std::advance(it, random(static_cast<uint32_t>(waiting.size())));
        int i = it->second;
        waiting.erase(it);
        order.clear();
        cr_assert(f[i].cancel() || f[i].isSet());
        cr_assert_eq(noted[i].error, ECANCELED);
        cr_assert_eq(order.size(), 1u);
      } else {
        order.clear();
        uint64_t to = s.get() + 1 + random(span / 4 + 1);
        cr_assert_eq(s.advance(to), to);
        std::vector<int> expected;
        for (auto it = waiting.begin(); it != waiting.end() && it->first <= to; it = waiting.erase(it)) expected.push_back(it->second);
        cr_assert(order == expected);
        for (int i : expected) cr_assert_eq(noted[i].error, 0);
      }
    }
  }
}

void gives_up(FiberSequencer& s) {
  for (uint64_t ms : {0, 1, 15}) {
    uint64_t deadline = now_ns() + ms * kMs;
    cr_assert_eq(s.waitUntil(1, deadline), ETIMEDOUT);
    cr_assert(now_ns() >= deadline);
    deadline = now_ns() + ms * kMs;
    cr_assert_eq(s.waitWithTimeout(1, ms * kMs), ETIMEDOUT);
    cr_assert(now_ns() >= deadline);
  }
}

Test(fiber_sequencer, gives_up_in_time_but_not_early) {
  FiberSequencer s;
  for (size_t kind = 0; kind < 3; kind++) {
    Threads t;
    t.any(kind, [&] { gives_up(s); });
  }
  cr_assert_eq(s.increment(), 1u);
}

Test(fiber_sequencer, ends_when_cancelled) {
  FiberSequencer s;
  FiberEvent e;
  for (size_t kind = 0; kind < 3; kind++) {
    std::atomic<FiberRecord*> who{nullptr};
    std::atomic<int> step{0};
    Threads t;
    t.any(kind, [&] {
      who = self();
      cr_assert_eq(s.wait(s.get() + 1), ECANCELED);
      forget_cancel();
      step = 1;
      cr_assert_eq(e.wait(), ECANCELED);
    });
    while (!who) give_way();
    until_parked(who);
    interrupt(who, kInterruptEnd);
    while (step != 1) give_way();
    until_parked(who);
    interrupt(who, kInterruptEnd);
    t.join();
    s.increment();
  }
}

FiberSequencer* counted_by_handler;
Test(fiber_sequencer, may_be_counted_by_a_handler) {
  FiberSequencer s;
  counted_by_handler = &s;
  signal(SIGUSR1, [](int) { counted_by_handler->increment(); });
  Threads t;
  for (uint64_t i = 1; i <= 20; i++) t.fiber([&, i] { cr_assert_eq(s.wait(i), 0); });
  for (int i = 0; i < 20; i++) raise(SIGUSR1);
}

Test(fiber_sequencer, may_be_destroyed_when_a_wait_has_returned, .timeout = 240) {
  use_chaos(2, 5);
  for (int round = 0; round < 1500; round++) {
    auto* s = new FiberSequencer;
    auto* e = new FiberEvent;
    Threads t;
    auto post = [s, e, round] {
      round % 2 ? s->increment() : s->advance(1);
      e->set();
    };
    round % 8 == 0 ? t.kernel(post) : t.fiber(post);
    if (round % 3) give_way();
    cr_assert_eq(s->wait(1), 0);
    memset(static_cast<void*>(s), 0x5a, sizeof *s);
    cr_assert_eq(e->wait(), 0);
    memset(static_cast<void*>(e), 0x5a, sizeof *e);
    delete s;
    delete e;
  }
}

// ---- histories ----

struct Call {
  enum { Increment, Advance, Get, Reached, Nothing } what;
  uint64_t argument, result;
};
struct Counter {
  uint64_t count = 0;
  bool apply(const Call& c) {
    switch (c.what) {
      case Call::Increment: return ++count == c.result;
      case Call::Advance:
        if (count < c.argument) count = c.argument;
        return count == c.result;
      case Call::Get: return count == c.result;
      case Call::Reached: return count >= c.argument;
      default: return true;
    }
  }
  std::string key() const { return std::to_string(count); }
};

// Half of the users are foreign threads. No thread can wait for ever, since the last one takes the count beyond all tokens.
void history_is_linearizable(uint32_t workers, uint64_t seed) {
  use_chaos(workers, seed);
  constexpr int kUsers = 8, kCalls = 12, kRounds = 60;
  long reached = 0, given_up = 0;
  for (int round = 0; round < kRounds; round++) {
    FiberSequencer s;
    History<Call> history(kUsers);
    std::atomic<int> left{kUsers};
    FiberRecord* users[kUsers] = {};
    std::atomic<int> known{0};
    Threads t;
    for (int u = 0; u < kUsers; u++) {
      auto body = [&, u] {
        users[u] = self();
        known++;
        Random random{static_cast<uint64_t>(round * kUsers + u)};
        auto token = [&] { return s.get() + random(4); };
        auto waited = [](uint64_t token, int e) { return Call{e ? Call::Nothing : Call::Reached, token, 0}; };
        for (int c = 0; c < kCalls; c++) {
          history.run(static_cast<size_t>(u), [&] {
            uint64_t n;
            switch (random(8)) {
              case 0: n = s.get() + random(3); return Call{Call::Advance, n, s.advance(n)};
              case 1: return Call{Call::Get, 0, s.get()};
              case 2: n = token(); return waited(n, s.waitWithTimeout(n, random(50'000)));
              case 3: {
                n = token();
                int e = s.wait(n);
                forget_cancel();
                return waited(n, e);
              }
              case 4: {
                n = token();
                Future f;
                s.wait(n, &f);
                for (uint32_t delay = random(500); delay; delay--) asm volatile("");
                bool ended = f.cancel();
                cr_assert(f.isSet());
                cr_assert_eq(f.error(), ended ? ECANCELED : 0);
                return waited(n, f.error());
              }
              default: return Call{Call::Increment, 0, s.increment()};
            }
          });
        }
        left--;
      };
      u % 2 ? t.kernel(body) : t.fiber(body);
    }
    while (known != kUsers) give_way();
    while (left > 0) {  // some wait for counts that no thread brings
      give_way();
      for (auto* u : users) interrupt(u, kInterruptEnd);
    }
    t.join();
    auto calls = history.calls();
    for (const auto& c : calls) {
      reached += c.call.what == Call::Reached;
      given_up += c.call.what == Call::Nothing;
    }
    cr_assert(linearizable<Counter>(calls));
  }
  cr_assert(reached > 100 && given_up > 100);
}

Test(fiber_sequencer, chaos_history_1_worker, .timeout = 240) { history_is_linearizable(1, 1); }
Test(fiber_sequencer, chaos_history_2_workers, .timeout = 240) { history_is_linearizable(2, 2); }
Test(fiber_sequencer, chaos_history_16_workers, .timeout = 240) { history_is_linearizable(16, 3); }

// No wake-up is lost and no future is left. Nothing else would end a wait.
void everybody_is_woken(uint32_t workers, uint64_t seed) {
  use_chaos(workers, seed);
  constexpr uint64_t kPosters = 4;
  const uint64_t kEach = 1500 * static_cast<uint64_t>(times()), kAll = kPosters * kEach;
  FiberSequencer s;
  std::atomic<long> given_up{0}, waits{0};
  Threads t;
  for (int u = 0; u < 12; u++) {
    auto body = [&, u] {
      Random random{static_cast<uint64_t>(u)};
      Pieces<Future> pieces;
      for (uint64_t token = 0; token < kAll;) {
        waits++;
        token += 1 + random(60);
        if (token > kAll) token = kAll;
        switch (random(3)) {
          case 0: cr_assert_eq(s.wait(token), 0); break;
          case 1:
            while (s.waitWithTimeout(token, random(50'000)) == ETIMEDOUT) given_up++;
            break;
          default:
            Future* f[4];
            for (uint64_t i = 0; i < 4; i++) s.wait(token + i <= kAll ? token + i : kAll, f[i] = pieces.make());
            for (uint64_t i = 4; i-- > 0;) {
              if (i && random(2) && f[i]->cancel()) given_up++;
              else cr_assert_eq(f[i]->wait(), 0);
              pieces.destroy(f[i]);
            }
        }
        cr_assert(s.get() >= token);
      }
    };
    u % 2 ? t.kernel(body) : t.fiber(body);
  }
  for (uint64_t p = 0; p < kPosters; p++) {
    auto body = [&, p] {
      for (uint64_t r = 0; r < kEach; r++) {
        s.increment();
        if ((r + p) % 16 == 0) give_way();
      }
    };
    p % 2 ? t.kernel(body) : t.fiber(body);
  }
  t.join();
  cr_assert_eq(s.get(), kAll);
  cr_assert(given_up > 0);
  counted(static_cast<long>(kAll) + waits, "counts and waits of sequencers");
}

Test(fiber_sequencer, chaos_1_worker, .timeout = 240) { everybody_is_woken(1, 1); }
Test(fiber_sequencer, chaos_2_workers, .timeout = 240) { everybody_is_woken(2, 2); }
Test(fiber_sequencer, chaos_16_workers, .timeout = 240) { everybody_is_woken(16, 3); }

// A wait begins, or is given up, just as another thread's count comes. No later call could make up for a lost wake-up.
Test(fiber_sequencer, request_that_comes_as_others_are_woken_is_not_lost, .timeout = 240) {
  use_chaos(2, 6);
  constexpr int kThreads = 4;
  constexpr uint64_t kRounds = 20000;
  FiberSequencer s;
  Rounds rounds(kThreads);
  Threads t;
  for (int i = 0; i < kThreads; i++)
    t.kernel([&, i] {
      Random random{static_cast<uint64_t>(i)};
      Future f;
      for (uint64_t r = 1; r <= kRounds; r++) {
        if (i == 1) s.wait(r, &f);
        rounds.meet();
        for (uint32_t delay = random(200); delay; delay--) asm volatile("");
        switch (i) {
          case 0: s.increment(); break;
          case 1: cr_assert_eq(random(2) && f.cancel() ? 0 : f.wait(), 0); break;
          default: cr_assert_eq(s.wait(r), 0);
        }
        rounds.meet();
      }
    });
}

}  // namespace
