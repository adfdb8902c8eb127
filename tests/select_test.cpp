// SPDX-License-Identifier: MIT
// select: which case is chosen, that it is exactly one, waiting, default, deadlines, cancellation, closing.
// alone: sync
#include "fiberthread/channel.h"

#include "tests/test.h"

#include <errno.h>
#include <pthread.h>

#include <atomic>
#include <initializer_list>
#include <memory>
#include <vector>

#include "sync/channel_core.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

void until_parked(std::atomic<FiberRecord*>& f) {
  while (!f.load() || f.load()->run.state.load() != State::Parked) give_way();
}

bool is(Selected s, int index, int error) { return s.index == index && s.error == error; }

Test(select, chooses_what_is_ready) {
  auto a = Channel<int>::make(1), b = Channel<int>::make(1), c = Channel<int>::make(0);
  int x = 0, y = 0, z = 0;
  ReceiveCase from_a(a.receiver, x), from_b(b.receiver, y), from_c(c.receiver, z);
  cr_assert(is(try_select(from_a, from_b, from_c), -1, EAGAIN));
  cr_assert_eq(b.sender.send(7), 0);
  cr_assert(is(select(from_a, from_b, from_c), 1, 0));
  cr_assert_eq(y, 7);
  cr_assert(is(try_select(from_a, from_b), -1, EAGAIN));
  cr_assert(is(select(ReceiveCase(a.receiver, x), SendCase(b.sender, 8)), 1, 0));
  cr_assert(is(try_select(SendCase(b.sender, 9), SendCase(c.sender, 9)), -1, EAGAIN));
  cr_assert_eq(*b.receiver.receive(), 8);
  cr_assert_eq(x + z, 0);
}

Test(select, waits_for_the_first_that_can_happen) {
  for (size_t capacity : {0, 1}) {
    for (int which = 0; which < 4; which++) {
      for (bool kernel : {false, true}) {
        auto a = Channel<int>::make(capacity), b = Channel<int>::make(capacity), c = Channel<int>::make(capacity),
             d = Channel<int>::make(capacity);
        while (c.sender.try_send(1) == 0 || d.sender.try_send(1) == 0) {
        }
        std::atomic<FiberRecord*> waits{nullptr};
        Threads t;
        auto body = [&] {
          int x = 0, y = 0;
          waits = self();
          Selected s = select(ReceiveCase(a.receiver, x), ReceiveCase(b.receiver, y), SendCase(c.sender, 3), SendCase(d.sender, 4));
          cr_assert(is(s, which, 0));
          cr_assert_eq(x, which == 0 ? 5 : 0);
          cr_assert_eq(y, which == 1 ? 5 : 0);
        };
        kernel ? t.kernel(body) : t.fiber(body);
        until_parked(waits);
        if (which < 2) {
          cr_assert_eq((which == 0 ? a : b).sender.try_send(5), 0);
        } else {
          auto& rx = (which == 2 ? c : d).receiver;
          int v = 0;
          if (capacity) cr_assert_eq(rx.try_receive(v), 0);
          cr_assert_eq(rx.receive(v), 0);
          cr_assert_eq(v, which == 2 ? 3 : 4);
        }
        t.join();
        // The select has left the other channels' queues, so a call there finds no partner.
        cr_assert_eq(a.sender.try_send(1), capacity ? 0 : EAGAIN);
        cr_assert_eq(b.sender.try_send(1), capacity ? 0 : EAGAIN);
        int v;
        if (capacity) {
          if (which != 2) cr_assert(c.receiver.try_receive(v) == 0 && v == 1);
          if (which != 3) cr_assert(d.receiver.try_receive(v) == 0 && v == 1);
        }
        cr_assert_eq(c.receiver.try_receive(v), EAGAIN);
        cr_assert_eq(d.receiver.try_receive(v), EAGAIN);
      }
    }
  }
}

// Two selects meet. Each has cases for both directions of all channels, and must not meet itself.
Test(select, two_selects_meet, .timeout = 120) {
  const int kRounds = chaos_rounds(20000);
  auto a = Channel<int>::make(0), b = Channel<int>::make(0);
  std::atomic<long> sent{0}, received{0};
  Threads t;
  for (int i = 0; i < 4; i++) {
    auto body = [&] {
      for (int r = 0; r < kRounds; r++) {
        int x = 0, y = 0;
        Selected s = select(ReceiveCase(a.receiver, x), SendCase(b.sender, r + 1), ReceiveCase(b.receiver, y), SendCase(a.sender, r + 1));
        if (s.error == ClosedChannel) break;  // another thread is done
        cr_assert_eq(s.error, 0);
        if (s.index % 2) sent += r + 1;
        else received += x + y;
        cr_assert(s.index == 0 || x == 0);
        cr_assert(s.index == 2 || y == 0);
      }
      a.sender.close();
      b.sender.close();
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
  t.join();
  cr_assert_eq(sent, received);
}

Test(select, one_channel_in_several_cases) {
  for (size_t capacity : {0, 1}) {
    auto c = Channel<int>::make(capacity);
    int x = 0, y = 0;
    ReceiveCase r1(c.receiver, x), r2(c.receiver, y);
    SendCase s1(c.sender, 1), s2(c.sender, 2);
    if (!capacity) cr_assert(is(try_select(r1, s1, r2, s2), -1, EAGAIN));
    std::atomic<FiberRecord*> waits{nullptr};
    Threads t;
    t.fiber([&] {
      waits = self();
      Selected s = select(r1, r2);
      cr_assert(s.error == 0 && s.index >= 0);
      cr_assert_eq(s.index == 0 ? x : y, 9);
      cr_assert_eq(x + y, 9);
    });
    until_parked(waits);
    cr_assert_eq(c.sender.try_send(9), 0);
    t.join();
    cr_assert_eq(c.sender.try_send(9), capacity ? 0 : EAGAIN);
  }
}

Test(select, closed_channels_are_chosen) {
  auto a = Channel<int>::make(1), b = Channel<int>::make(0);
  int x = 0;
  cr_assert_eq(a.sender.send(1), 0);
  a.sender.close();
  ReceiveCase from_a(a.receiver, x);
  cr_assert(is(select(from_a), 0, 0));
  cr_assert_eq(x, 1);
  cr_assert(is(select(from_a), 0, ClosedChannel));
  SendCase to_b(b.sender, 4);
  std::atomic<FiberRecord*> waits{nullptr};
  Threads t;
  t.fiber([&] {
    waits = self();
    cr_assert(is(select(to_b), 0, ClosedChannel));
  });
  until_parked(waits);
  b.receiver.close();
  t.join();
  cr_assert(to_b.has_value());  // the case keeps its value
  cr_assert_eq(to_b.value(), 4);
}

Test(select, cases_without_a_channel_or_a_value_are_never_chosen) {
  auto a = Channel<int>::make(3);
  int x = 0;
  ReceiveCase none(Receiver<int>(), x);
  cr_assert(is(select(none), -1, EINVAL));
  cr_assert(is(select_cases(nullptr, 0, kForever), -1, EINVAL));
  cr_assert(is(try_select(none), -1, EAGAIN));
  cr_assert(is(select_for(1000, none), -1, ETIMEDOUT));
  SendCase s(a.sender, 1);
  cr_assert(is(select(none, s), 1, 0));
  cr_assert(!s.has_value());
  cr_assert(is(select(none, s), -1, EINVAL));  // the case has sent its value
  s.put(2);
  cr_assert(is(select(none, s), 1, 0));
  cr_assert_eq(a.receiver.size(), 2u);
}

Test(select, values_stay_whole_whatever_happens) {
  auto a = Channel<std::unique_ptr<int>>::make(1);
  auto s = Channel<std::string>::make(1);
  SendCase full(a.sender, std::make_unique<int>(1));
  SendCase text(s.sender, std::string(100, 'x'));
  Selected first = select(full, text);
  Selected second = select(full, text);
  cr_assert(first.error == 0 && second.error == 0 && first.index + second.index == 1);
  full.put(std::make_unique<int>(2));
  text.put("kept");
  cr_assert(is(select_for(1000, full, text), -1, ETIMEDOUT));
  cr_assert_eq(*full.value(), 2);
  cr_assert_eq(text.value(), "kept");
  std::unique_ptr<int> p;
  std::string into;
  ReceiveCase rp(a.receiver, p);
  ReceiveCase rs(s.receiver, into);
  select(rp, rs);
  select(rp, rs);
  cr_assert_eq(*p, 1);
  cr_assert_eq(into, std::string(100, 'x'));
}

Test(select, gives_up_in_time_but_not_early_and_leaves_nothing) {
  auto a = Channel<int>::make(0), b = Channel<int>::make(1);
  cr_assert_eq(b.sender.send(1), 0);
  for (bool kernel : {false, true}) {
    Threads t;
    auto body = [&] {
      for (uint64_t ms : {0, 1, 15}) {
        int x = 0;
        uint64_t deadline = now_ns() + ms * kMs;
        cr_assert(is(select_until(deadline, ReceiveCase(a.receiver, x), SendCase(b.sender, 2)), -1, ETIMEDOUT));
        cr_assert(now_ns() >= deadline);
        cr_assert(is(select_for(ms * kMs, ReceiveCase(a.receiver, x), SendCase(b.sender, 2)), -1, ETIMEDOUT));
        cr_assert(now_ns() >= deadline + ms * kMs);
      }
      cr_assert(is(select_until(0, SendCase(b.sender, 2)), -1, ETIMEDOUT));  // and not EAGAIN
    };
    kernel ? t.kernel(body) : t.fiber(body);
  }
  cr_assert_eq(a.sender.try_send(1), EAGAIN);
  int v;
  cr_assert(b.receiver.try_receive(v) == 0 && v == 1);
  cr_assert_eq(b.receiver.try_receive(v), EAGAIN);
}

Test(select, cancellation_ends_a_wait) {
  auto a = Channel<int>::make(0), b = Channel<int>::make(0);
  std::atomic<FiberRecord*> waits{nullptr};
  Threads t;
  t.fiber([&] {
    int x = 0;
    waits = self();
    cr_assert(is(select(ReceiveCase(a.receiver, x), SendCase(b.sender, 1)), -1, ECANCELED));
    cr_assert(is(select(ReceiveCase(a.receiver, x), SendCase(b.sender, 1)), -1, ECANCELED));
    self()->run.interrupts.fetch_and(~uint32_t{kInterruptEnd});
  });
  until_parked(waits);
  interrupt(waits, kInterruptEnd);
  t.join();
  cr_assert_eq(a.sender.try_send(1), EAGAIN);
  cr_assert(!b.receiver.try_receive());
}

#ifndef ALONE
// A thread waits for two channels without room until one of them goes on. Or the thread is cancelled, at whatever instruction it is. So its
// own frame must have nothing to destroy.
struct Cancelled {
  Channel<int> in = Channel<int>::make(0), out = Channel<int>::make(0);
  int got = 0;
  ReceiveCase<int> receives{in.receiver, got};
  SendCase<int> sends{out.sender, 3};
  SelectCase* cases[2] = {&receives, &sends};
  std::atomic<FiberRecord*> waits{nullptr};
  bool kernel;
  pthread_t thread;

  explicit Cancelled(bool k) : kernel(k) {
    auto body = [](void* p) -> void* {
      auto* me = static_cast<Cancelled*>(p);
      me->waits = self();
      pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
      select_cases(me->cases, 2, kForever);
      return nullptr;
    };
    cr_assert_eq(kernel ? REAL(pthread_create)(&thread, nullptr, body, this) : pthread_create(&thread, nullptr, body, this), 0);
  }
  bool was_cancelled() {
    void* result;
    cr_assert_eq(kernel ? REAL(pthread_join)(thread, &result) : pthread_join(thread, &result), 0);
    return result == PTHREAD_CANCELED;
  }
  // Checks that the select has left no case behind, and that both channels can be used.
  void check_left() {
    cr_assert(!in.sender.core()->looks_ready(true) && !out.sender.core()->looks_ready(false));  // the flags of waiters
    cr_assert_eq(in.sender.try_send(1), EAGAIN);
    cr_assert(!out.receiver.try_receive());
    int x = 0, y = 0;
    Threads t;
    t.fiber([&] { cr_assert(is(select(SendCase(in.sender, 7), ReceiveCase(out.receiver, y)), 0, 0)); });
    cr_assert(is(select(ReceiveCase(in.receiver, x)), 0, 0));
    cr_assert_eq(x, 7);
  }
};

Test(select, a_thread_cancelled_in_it_leaves_nothing, .timeout = 120) {
  for (int round = 0; round < chaos_rounds(300); round++) {
    Cancelled c(round % 2);
    until_parked(c.waits);
    cr_assert_eq(pthread_cancel(c.thread), 0);
    cr_assert(c.was_cancelled());
    cr_assert(c.got == 0 && c.sends.has_value());
    c.check_left();
  }
}

// The thread is cancelled while another one gives or takes a value. One of the two has the value afterwards.
Test(select, a_cancellation_that_comes_with_a_value_loses_none, .timeout = 120) {
  int passed = 0, cancelled = 0;
  const int kRounds = chaos_rounds(4000);
  for (int round = 0; round < kRounds; round++) {
    Cancelled c(round % 2);
    if (round / 2 % 2) until_parked(c.waits);
    bool gives = round / 4 % 2;
    int error = 0, value = 0;
    std::atomic<bool> go{false};
    Threads t;
    t.kernel([&] {
      while (!go) cpu_relax();
      error = gives ? c.in.sender.try_send(5) : c.out.receiver.try_receive(value);
    });
    go = true;
    if (round % 16 == 3) t.join();  // some values do pass
    pthread_cancel(c.thread);
    t.join();
    cancelled += c.was_cancelled();
    passed += error == 0;
    if (gives) cr_assert_eq(c.got, error ? 0 : 5);
    else cr_assert(error ? c.sends.has_value() : value == 3);
    c.check_left();
  }
  cr_assert(passed > 0 && cancelled > 0, "%d rounds: %d values, %d cancelled", kRounds, passed, cancelled);
}
#endif

// Of the cases that are ready, each is chosen equally often, wherever the others stand. The value comes from the chosen channel.
Test(select, ready_cases_are_chosen_equally_often) {
  constexpr size_t kCases = 6, kRounds = 6000;
  for (unsigned ready : {0b111111u, 0b000011u, 0b100000u, 0b001101u, 0b111110u}) {
    std::vector<Channel<int>> channels;
    std::vector<std::unique_ptr<ReceiveCase<int>>> cases;
    SelectCase* pointers[kCases];
    int x;
    for (size_t i = 0; i < kCases; i++) {
      channels.push_back(Channel<int>::make(1));
      cases.push_back(std::make_unique<ReceiveCase<int>>(channels[i].receiver, x));
      pointers[i] = cases[i].get();
    }
    size_t chosen[kCases] = {}, share = kRounds / static_cast<size_t>(__builtin_popcount(ready));
    for (size_t round = 0; round < kRounds; round++) {
      for (size_t i = 0; i < kCases; i++)
        if (ready >> i & 1) (void)channels[i].sender.try_send(static_cast<int>(i));
      Selected s = select_cases(pointers, kCases, kForever);
      cr_assert(s.error == 0 && x == s.index);
      chosen[s.index]++;
    }
    // Five in a hundred of all rounds are more than seven standard deviations.
    for (size_t i = 0; i < kCases; i++) {
      if (ready >> i & 1)
        cr_assert(chosen[i] > share - kRounds / 20 && chosen[i] < share + kRounds / 20 + 1, "case %zu of %#x: %zu times", i, ready,
                  chosen[i]);
      else cr_assert_eq(chosen[i], 0u);
    }
  }
}

// Fan-in and fan-out with selects on both sides. Some selects give up, until all values are through.
Test(select, no_value_is_lost_or_doubled, .timeout = 120) {
  constexpr int kChannels = 4, kSenders = 4, kReceivers = 4;
  const int kEach = chaos_rounds(8000);
  for (size_t capacity : {0, 1, 8}) {
    std::vector<Channel<int>> channels;
    for (int i = 0; i < kChannels; i++) channels.push_back(Channel<int>::make(capacity));
    std::vector<std::atomic<int>> seen(static_cast<size_t>(kSenders * kEach));
    std::atomic<int> left{kSenders * kEach};
    Threads t;
    for (int s = 0; s < kSenders; s++) {
      auto body = [&, s] {
        Random random{static_cast<uint64_t>(s)};
        for (int i = 0; i < kEach; i++) {
          int v = s * kEach + i;
          auto &a = channels[random(kChannels)].sender, &b = channels[random(kChannels)].sender;
          SendCase ca(a, v), cb(b, v);
          Selected done{-1, 0};
          while (done.index < 0) {
            switch (random(3)) {
              case 0: done = select_for(random(50'000), ca, cb); break;
              case 1:
                done = try_select(ca, cb);
                if (done.index < 0) give_way();
                break;
              default: done = select(ca, cb);
            }
          }
          cr_assert_eq(done.error, 0);
          cr_assert(ca.has_value() != cb.has_value());
        }
      };
      s % 2 ? t.kernel(body) : t.fiber(body);
    }
    for (int r = 0; r < kReceivers; r++) {
      auto body = [&, r] {
        Random random{static_cast<uint64_t>(r) + 100};
        for (;;) {
          int x[kChannels] = {-1, -1, -1, -1};
          ReceiveCase c0(channels[0].receiver, x[0]), c1(channels[1].receiver, x[1]), c2(channels[2].receiver, x[2]),
              c3(channels[3].receiver, x[3]);
          Selected s = random(4) ? select(c0, c1, c2, c3) : select_for(random(50'000), c3, c2, c1, c0);
          if (s.error == ClosedChannel) return;
          if (s.index < 0) continue;
          for (int v : x)
            if (v >= 0) {
              cr_assert_eq(seen[static_cast<size_t>(v)].fetch_add(1), 0);
              if (--left == 0)
                for (auto& c : channels) c.sender.close();
            }
        }
      };
      r % 2 ? t.kernel(body) : t.fiber(body);
    }
    t.join();
    cr_assert_eq(left, 0);
  }
}

}  // namespace
