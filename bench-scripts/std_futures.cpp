// SPDX-License-Identifier: MIT
#include <condition_variable>
#include <future>
#include <mutex>

#include "api.h"

namespace {

double promise_set_get() {
  constexpr long kMany = 20'000;
  std::vector<std::promise<int>> to, fro;
  return ns_each(kMany, [&](long n) {
    to = std::vector<std::promise<int>>(static_cast<size_t>(n) / 2);
    fro = std::vector<std::promise<int>>(static_cast<size_t>(n) / 2);
    in_threads(2, [&](int who) {
      for (size_t i = 0; i < to.size(); i++) {
        if (!who) to[i].set_value(1);
        (who ? to : fro)[i].get_future().get();
        if (who) fro[i].set_value(1);
      }
    });
  });
}

double promise_ready() {
  return ns_each(100'000, [](long n) {
    for (long i = 0; i < n; i++) {
      std::promise<int> p;
      p.set_value(1);
      p.get_future().get();
    }
  });
}

double atomic_wait() {
  std::atomic<uint64_t> to{0}, fro{0};
  uint64_t a = 0, b = 0;
  auto post = [](std::atomic<uint64_t>& count) {
    count.fetch_add(1, std::memory_order_release);
    count.notify_all();
  };
  auto wait = [](std::atomic<uint64_t>& count, uint64_t token) {
    for (uint64_t now; (now = count.load(std::memory_order_acquire)) < token;) count.wait(now);
  };
  return by_turns(
      20'000,
      [&](long) {
        post(to);
        wait(fro, ++a);
      },
      [&](long) {
        wait(to, ++b);
        post(fro);
      });
}

// An event, or a count, as a program would write it with a condition variable.
double condition_ping_pong() {
  std::mutex m;
  std::condition_variable c;
  bool turn = false;
  auto step = [&](bool mine) {
    std::unique_lock<std::mutex> lock(m);
    c.wait(lock, [&] { return turn == mine; });
    turn = !mine;
    c.notify_one();
  };
  return by_turns(20'000, [&](long) { step(false); }, [&](long) { step(true); });
}

CASE("future-set-wait", promise_set_get);
CASE("future-ready", promise_ready);
CASE("futex-post-wait", atomic_wait);
CASE("sequencer-increment-wait", condition_ping_pong);
CASE("event-set-wait", condition_ping_pong);
CASE("mutex-uncontended", lock_unlock<std::mutex>);
CASE("mutex-8", [] { return lock_unlock_8<std::mutex>(400'000); });
CASE("fair-mutex-uncontended", lock_unlock<std::mutex>);
CASE("fair-mutex-8", [] { return lock_unlock_8<std::mutex>(); });

}  // namespace
