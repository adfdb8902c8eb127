// SPDX-License-Identifier: MIT
#include <boost/fiber/all.hpp>

#include "api.h"

namespace {

namespace fibers = boost::fibers;

template <class Body>
void in_fibers(int n, Body body) {
  std::vector<fibers::fiber> f;
  for (int i = 0; i < n; i++) f.emplace_back([&body, i] { body(i); });
  for (auto& one : f) one.join();
}

double promise_set_get() {
  return ns_each(20'000, [&](long n) {
    std::vector<fibers::promise<int>> to(static_cast<size_t>(n) / 2), fro(static_cast<size_t>(n) / 2);
    in_fibers(2, [&](int who) {
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
      fibers::promise<int> p;
      p.set_value(1);
      p.get_future().get();
    }
  });
}

double condition_ping_pong() {
  fibers::mutex m;
  fibers::condition_variable c;
  bool turn = false;
  auto step = [&](bool mine) {
    std::unique_lock<fibers::mutex> lock(m);
    c.wait(lock, [&] { return turn == mine; });
    turn = !mine;
    c.notify_one();
  };
  return ns_each(100'000, [&](long n) {
    in_fibers(2, [&](int who) {
      for (long i = 0; i < n / 2; i++) step(who);
    });
  });
}

double mutex_8() {
  fibers::mutex m;
  long count = 0;
  return ns_each(400'000, [&](long n) {
    in_fibers(8, [&](int) {
      for (long i = 0; i < n / 8; i++) {
        m.lock();
        count++;
        m.unlock();
      }
    });
  });
}

CASE("future-set-wait", promise_set_get);
CASE("future-ready", promise_ready);
CASE("sequencer-increment-wait", condition_ping_pong);
CASE("event-set-wait", condition_ping_pong);
CASE("mutex-uncontended", lock_unlock<fibers::mutex>);
CASE("mutex-8", mutex_8);

}  // namespace
