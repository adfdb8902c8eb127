// SPDX-License-Identifier: MIT
// Channel: order, hand-over, room, closing, handles, deadlines, cancellation, and that no value is lost, doubled or leaked.
// alone: sync
#include "fiberthread/channel.h"

#include "tests/test.h"

#include <errno.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "sync/channel_core.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

void until_parked(std::atomic<FiberRecord*>& f) {
  while (!f.load() || f.load()->run.state.load() != State::Parked) give_way();
}

// A value that counts how many of its kind are alive. It is not trivially copyable, so the channel boxes it.
struct Counted {
  static inline std::atomic<int> alive{0};
  int n = 0;
  explicit Counted(int v = 0) : n(v) { alive++; }
  Counted(Counted&& o) noexcept : n(std::exchange(o.n, -1)) { alive++; }
  Counted(const Counted& o) : n(o.n) { alive++; }
  Counted& operator=(Counted&& o) noexcept {
    n = std::exchange(o.n, -1);
    return *this;
  }
  ~Counted() { alive--; }
};

// Runs `body` in a fiber, and then in a kernel thread that runs no fibers.
template <class F>
void by_each(F body) {
  for (bool kernel : {false, true}) {
    Threads t;
    kernel ? t.kernel(body) : t.fiber(body);
  }
}

Test(channel, buffered_values_come_in_order_up_to_the_capacity) {
  for (size_t capacity : {1, 2, 3, 5, 8, 100}) {
    auto [tx, rx] = Channel<int>::make(capacity);
    cr_assert_eq(tx.capacity(), capacity);
    int sent = 0, received = 0;
    for (int round = 0; round < 10; round++) {
      while (tx.try_send(sent) == 0) sent++;
      cr_assert_eq(static_cast<size_t>(sent - received), capacity);
      cr_assert_eq(rx.size(), capacity);
      cr_assert_eq(tx.try_send(sent), EAGAIN);
      for (size_t k = 0; k < (capacity + 1) / 2; k++) {
        int v = -1;
        cr_assert_eq(rx.try_receive(v), 0);
        cr_assert_eq(v, received++);
      }
    }
    while (received < sent) cr_assert_eq(*rx.try_receive(), received++);
    cr_assert(!rx.try_receive());
    int v = 7;
    cr_assert_eq(rx.try_receive(v), EAGAIN);
    cr_assert_eq(v, 7);
    cr_assert_eq(rx.size(), 0u);
  }
}

Test(channel, the_same_without_the_lock_free_path) {
  channel_lock_free = false;
  auto [tx, rx] = Channel<int>::make(3);
  channel_lock_free = true;
  for (int i = 0; i < 3; i++) cr_assert_eq(tx.try_send(i), 0);
  cr_assert_eq(tx.try_send(3), EAGAIN);
  Threads t;
  Sender<int> sender = tx;
  t.fiber([&] {
    for (int i = 3; i < 1000; i++) cr_assert_eq(sender.send(i), 0);
  });
  for (int i = 0; i < 1000; i++) cr_assert_eq(*rx.receive(), i);
}

Test(channel, values_of_all_kinds) {
  struct Large {
    std::array<int, 100> a;
  };
  struct Odd {
    char c[3];
  };
  auto ints = Channel<std::string>::make(2);
  std::string s(100, 'x');
  cr_assert_eq(ints.sender.send(s), 0);
  cr_assert_eq(s.size(), 100u);  // the value was copied
  cr_assert_eq(ints.sender.send(std::move(s)), 0);
  std::string failed(100, 'y');
  cr_assert_eq(ints.sender.try_send(std::move(failed)), EAGAIN);
  cr_assert_eq(failed, std::string(100, 'y'));  // the caller still has the value
  cr_assert_eq(ints.receiver.receive()->size(), 100u);
  std::string into = "before";
  cr_assert_eq(ints.receiver.receive(into), 0);
  cr_assert_eq(into, std::string(100, 'x'));
  auto pointers = Channel<std::unique_ptr<int>>::make(1);
  cr_assert(!ChannelSlot<std::unique_ptr<int>>::kBoxed);
  auto p = std::make_unique<int>(5);
  cr_assert_eq(pointers.sender.send(std::move(p)), 0);
  cr_assert(!p);
  cr_assert_eq(**pointers.receiver.receive(), 5);
  auto large = Channel<Large>::make(1);
  cr_assert(ChannelSlot<Large>::kBoxed);
  Large l{};
  l.a[99] = 7;
  cr_assert_eq(large.sender.send(l), 0);
  cr_assert_eq(large.receiver.receive()->a[99], 7);
  auto odd = Channel<Odd>::make(3);
  for (char c : {'a', 'b', 'c'}) cr_assert_eq(odd.sender.send(Odd{{c, c, c}}), 0);
  for (char c : {'a', 'b', 'c'}) cr_assert_eq(odd.receiver.receive()->c[2], c);
}

Test(channel, rendezvous_needs_both_sides) {
  auto [tx, rx] = Channel<int>::make(0);
  cr_assert_eq(tx.try_send(1), EAGAIN);
  cr_assert(!rx.try_receive());
  cr_assert_eq(tx.send_for(1, kMs), ETIMEDOUT);
  int v;
  cr_assert_eq(rx.receive_for(v, kMs), ETIMEDOUT);
  std::atomic<FiberRecord*> waits{nullptr};
  for (bool kernel : {false, true}) {
    waits = nullptr;
    Threads t;
    auto send = [&, &tx = tx] {
      waits = self();
      cr_assert_eq(tx.send(2), 0);
    };
    kernel ? t.kernel(send) : t.fiber(send);
    until_parked(waits);
    cr_assert_eq(rx.try_receive(v), 0);
    cr_assert_eq(v, 2);
    t.join();
    waits = nullptr;
    auto receive = [&, &rx = rx] {
      waits = self();
      cr_assert_eq(*rx.receive(), 3);
    };
    kernel ? t.kernel(receive) : t.fiber(receive);
    until_parked(waits);
    cr_assert_eq(tx.try_send(3), 0);
    t.join();
    cr_assert_eq(tx.try_send(4), EAGAIN);
  }
}

// Waiting receivers get values in the order in which they began to wait. Waiting senders send theirs in that order.
Test(channel, waiters_are_served_in_the_order_of_arrival) {
  for (size_t capacity : {0, 1, 3}) {
    constexpr int kThreads = 7;
    auto [tx, rx] = Channel<int>::make(capacity);
    {
      std::atomic<FiberRecord*> waits[kThreads] = {};
      int got[kThreads];
      Threads t;
      for (int i = 0; i < kThreads; i++) {
        auto body = [&, i, &rx = rx] {
          waits[i] = self();
          cr_assert_eq(rx.receive(got[i]), 0);
        };
        i % 3 == 1 ? t.kernel(body) : t.fiber(body);
        until_parked(waits[i]);
      }
      for (int i = 0; i < kThreads; i++) cr_assert_eq(tx.try_send(i), 0);
      t.join();
      for (int i = 0; i < kThreads; i++) cr_assert_eq(got[i], i);
    }
    for (size_t i = 0; i < capacity; i++) cr_assert_eq(tx.try_send(static_cast<int>(i)), 0);
    std::atomic<FiberRecord*> waits[kThreads] = {};
    Threads t;
    for (int i = 0; i < kThreads; i++) {
      auto body = [&, i, &tx = tx, capacity = capacity] {
        waits[i] = self();
        cr_assert_eq(tx.send(static_cast<int>(capacity) + i), 0);
      };
      i % 3 == 1 ? t.kernel(body) : t.fiber(body);
      until_parked(waits[i]);
    }
    for (int i = 0; i < static_cast<int>(capacity) + kThreads; i++) {
      cr_assert_eq(*rx.try_receive(), i);
      int waiting = kThreads - 1 - i;
      cr_assert_eq(rx.size(), std::min(capacity, static_cast<size_t>(waiting < 0 ? static_cast<int>(capacity) + waiting
                                                                                 : static_cast<int>(capacity))));
    }
    cr_assert(!rx.try_receive());
  }
}

Test(channel, gives_up_in_time_but_not_early) {
  for (size_t capacity : {0, 2}) {
    auto [tx, rx] = Channel<int>::make(capacity);
    by_each([&rx = rx] {
      for (uint64_t ms : {0, 1, 15}) {
        int v = 3;
        uint64_t deadline = now_ns() + ms * kMs;
        cr_assert_eq(rx.receive_until(v, deadline), ETIMEDOUT);
        cr_assert(now_ns() >= deadline);
        cr_assert_eq(rx.receive_for(v, ms * kMs), ETIMEDOUT);
        cr_assert(now_ns() >= deadline + ms * kMs);
        cr_assert_eq(v, 3);
      }
    });
    while (tx.try_send(1) == 0) {
    }
    by_each([&tx = tx] {
      for (uint64_t ms : {0, 1, 15}) {
        uint64_t deadline = now_ns() + ms * kMs;
        cr_assert_eq(tx.send_until(9, deadline), ETIMEDOUT);
        cr_assert(now_ns() >= deadline);
        cr_assert_eq(tx.send_for(9, ms * kMs), ETIMEDOUT);
        cr_assert(now_ns() >= deadline + ms * kMs);
      }
    });
    cr_assert_eq(tx.send_until(9, 0), ETIMEDOUT);  // and not EAGAIN
    cr_assert_eq(rx.size(), capacity);
    while (auto v = rx.try_receive()) cr_assert_eq(*v, 1);
    // A call that need not wait ignores its deadline.
    if (capacity) cr_assert_eq(tx.send_until(5, 0), 0);
    int v = 0;
    if (capacity) cr_assert_eq(rx.receive_until(v, 0), 0);
  }
}

Test(channel, close_wakes_all_and_keeps_buffered_values) {
  for (size_t capacity : {0, 1, 3}) {
    for (bool receivers : {true, false}) {
      auto [tx, rx] = Channel<int>::make(capacity);
      if (!receivers)
        for (size_t i = 0; i < capacity; i++) cr_assert_eq(tx.send(static_cast<int>(i)), 0);
      Threads t;
      for (int i = 0; i < 4; i++) {
        std::atomic<FiberRecord*> waits{nullptr};
        auto body = [&, &tx = tx, &rx = rx, receivers = receivers] {
          Sender<int> own_tx = tx;
          Receiver<int> own_rx = rx;
          waits = self();
          int v = 8;
          cr_assert_eq(receivers ? own_rx.receive(v) : own_tx.send(v), ClosedChannel);
          cr_assert_eq(v, 8);
        };
        i % 2 ? t.kernel(body) : t.fiber(body);
        until_parked(waits);
      }
      cr_assert(!tx.closed());
      if (receivers) tx.close();
      else rx.close();
      cr_assert(tx.closed() && rx.closed());
      t.join();
      cr_assert_eq(tx.try_send(1), ClosedChannel);
      cr_assert_eq(tx.send(1), ClosedChannel);
      if (!receivers)
        for (size_t i = 0; i < capacity; i++) cr_assert_eq(*rx.receive(), static_cast<int>(i));
      int v;
      cr_assert_eq(rx.receive(v), EPIPE);
      cr_assert_eq(rx.try_receive(v), EPIPE);
      tx.close();  // a second time
    }
  }
}

Test(channel, last_handle_of_a_side_closes) {
  {
    auto [tx, rx] = Channel<int>::make(2);
    Sender<int> other = tx, third = std::move(other);
    cr_assert(!other && third && tx.same_channel(rx) && third.same_channel(tx));
    cr_assert_eq(third.send(1), 0);
    third.reset();
    cr_assert(!rx.closed());
    Receiver<int> copy = rx;
    tx = Sender<int>();
    cr_assert(rx.closed());
    cr_assert_eq(*copy.receive(), 1);
    cr_assert(!copy.receive());
  }
  {
    auto [tx, rx] = Channel<int>::make(0);
    Threads t;
    std::atomic<FiberRecord*> waits{nullptr};
    Receiver<int>* only = new Receiver<int>(std::move(rx));
    t.fiber([&, &tx = tx] {
      waits = self();
      cr_assert_eq(tx.send(1), ClosedChannel);
    });
    until_parked(waits);
    delete only;
  }
}

Test(channel, empty_handles_are_refused) {
  Sender<int> tx;
  Receiver<int> rx;
  int v = 0;
  cr_assert_eq(tx.send(1), EINVAL);
  cr_assert_eq(tx.try_send(1), EINVAL);
  cr_assert_eq(rx.receive(v), EINVAL);
  cr_assert(!rx.receive() && !tx && !rx && tx.closed() && rx.closed());
  cr_assert_eq(tx.capacity() + tx.size(), 0u);
  tx.close();
  auto impossible = Channel<int>::make(~size_t{0} / 2);
  cr_assert(!impossible.sender && !impossible.receiver);
}

Test(channel, values_that_nobody_can_receive_are_destroyed_with_the_last_receiver) {
  Counted::alive = 0;
  {
    auto [tx, rx] = Channel<Counted>::make(4);
    for (int i = 0; i < 3; i++) cr_assert_eq(tx.send(Counted(i)), 0);
    cr_assert_eq(Counted::alive, 3);
    rx.reset();
    cr_assert_eq(Counted::alive, 0);
    Counted kept(5);
    cr_assert_eq(tx.send(std::move(kept)), ClosedChannel);
    cr_assert_eq(kept.n, 5);
  }
  cr_assert_eq(Counted::alive, 0);
  {
    auto [tx, rx] = Channel<Counted>::make(4);
    cr_assert_eq(tx.send(Counted(1)), 0);
  }
  cr_assert_eq(Counted::alive, 0);
}

Test(channel, cancellation_ends_a_wait_and_loses_nothing) {
  for (size_t capacity : {0, 2}) {
    for (bool sends : {false, true}) {
      auto [tx, rx] = Channel<Counted>::make(capacity);
      if (sends)
        while (tx.try_send(Counted(0)) == 0) {
        }
      std::atomic<FiberRecord*> waits{nullptr};
      Threads t;
      t.fiber([&, &tx = tx, &rx = rx, sends = sends, capacity = capacity] {
        Counted v(9);
        waits = self();
        cr_assert_eq(sends ? tx.send(std::move(v)) : rx.receive(v), ECANCELED);
        cr_assert_eq(v.n, 9);
        cr_assert_eq(sends ? tx.send(std::move(v)) : rx.receive(v), ECANCELED);  // the end reason stays
        if (capacity) {                                                          // a call that need not wait succeeds
          if (sends) cr_assert_eq(rx.receive(v), 0);
          else cr_assert_eq(tx.send(std::move(v)), 0);
        }
        self()->run.interrupts.fetch_and(~uint32_t{kInterruptEnd});
      });
      until_parked(waits);
      interrupt(waits, kInterruptEnd);
      t.join();
      cr_assert_eq(rx.size(), sends && capacity ? capacity - 1 : capacity ? 1 : 0);
    }
  }
  cr_assert_eq(Counted::alive, 0);
}

// The last sender and the last receiver end at about the same time.
Test(channel, is_freed_with_its_last_handle, .timeout = 120) {
  for (int round = 0; round < chaos_rounds(3000); round++) {
    auto made = Channel<Counted>::make(static_cast<size_t>(round % 3));
    Threads t;
    auto send = [tx = std::make_shared<Sender<Counted>>(std::move(made.sender))] {
      for (int i = 0; i < 3 && tx->send(Counted(i)) == 0; i++) {
      }
    };
    auto receive = [rx = std::make_shared<Receiver<Counted>>(std::move(made.receiver)), round] {
      for (int i = 0; i < round % 5; i++) (void)rx->receive();
    };
    round % 16 == 0 ? t.kernel(std::move(send)) : t.fiber(std::move(send));
    round % 16 == 1 ? t.kernel(std::move(receive)) : t.fiber(std::move(receive));
  }
  cr_assert_eq(Counted::alive, 0);
}

Test(channel, each_sender_s_values_come_in_its_order, .timeout = 120) {
  constexpr int kSenders = 6, kReceivers = 4;
  const int kEach = chaos_rounds(10000);
  for (size_t capacity : {0, 1, 4, 64}) {
    auto made = Channel<std::pair<int, int>>::make(capacity);
    std::atomic<long> sum{0};
    Threads t;
    for (int s = 0; s < kSenders; s++) {
      auto body = [tx = made.sender, s, kEach] {
        for (int i = 0; i < kEach; i++) cr_assert_eq(tx.send({s, i}), 0);
      };
      s % 2 ? t.kernel(body) : t.fiber(body);
    }
    for (int r = 0; r < kReceivers; r++) {
      auto body = [rx = made.receiver, &sum] {
        int last[kSenders];
        for (int& l : last) l = -1;
        while (auto v = rx.receive()) {
          cr_assert(v->second > last[v->first]);
          last[v->first] = v->second;
          sum += v->second + 1;
        }
      };
      r % 2 ? t.kernel(body) : t.fiber(body);
    }
    made.sender.reset();
    made.receiver.reset();
    t.join();
    cr_assert_eq(sum, long{kSenders} * kEach * (kEach + 1) / 2);
  }
}

}  // namespace
