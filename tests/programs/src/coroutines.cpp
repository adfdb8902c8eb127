// SPDX-License-Identifier: MIT
// Boost's coroutines, and fibers of Boost.Context, inside threads. Threads wait, throw and are preempted on stacks that the library does
// not know. Some of these go on in another thread.
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <boost/coroutine2/all.hpp>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

using boost::coroutines2::coroutine;

static std::mutex m;
static std::condition_variable changed;
static long shared;
static thread_local int local;

static void numbers(coroutine<long>::push_type& sink, int n) {
  for (int i = 0; i < n; i++) {
    local++;
    {
      std::unique_lock<std::mutex> lock(m);
      shared++;
      changed.notify_all();
      changed.wait_for(lock, std::chrono::microseconds(50), [&] { return shared % 3 == 0; });
    }
    for (volatile int k = 0; k < 30000; k = k + 1) {
    }
    try {
      if (i % 3 == 0) throw std::runtime_error("x");
      sink(i);
    } catch (std::runtime_error&) {
      sink(-i);
    }
  }
}

static long in_thread() {
  long sum = 0;
  std::vector<coroutine<long>::pull_type> all;
  for (int i = 0; i < 6; i++) all.emplace_back([](coroutine<long>::push_type& sink) { numbers(sink, 30); });
  for (bool more = true; more;) {
    more = false;
    for (auto& c : all)
      if (c) sum += c.get(), c(), more = true;
  }
  return sum * 1000 + local;
}

int main() {
  std::vector<std::thread> t;
  std::atomic<long> sum{0};
  for (int i = 0; i < 8; i++) t.emplace_back([&] { sum += in_thread(); });
  for (auto& x : t) x.join();
  std::printf("%ld %ld\n", sum.load(), shared);
  // A coroutine of which each thread runs a step.
  coroutine<long>::pull_type wanders([](coroutine<long>::push_type& sink) {
    for (long i = 1;; i++) {
      usleep(i % 5 ? 0 : 100);
      sink(i);
    }
  });
  t.clear();
  for (int i = 0; i < 8; i++)
    t.emplace_back([&] {
      for (int k = 0; k < 20; k++) {
        std::lock_guard<std::mutex> lock(m);
        wanders();
      }
    });
  for (auto& x : t) x.join();
  std::printf("%ld\n", wanders.get());
  // This coroutine is left in the middle, so its stack is unwound.
  struct Guard {
    std::atomic<int>& n;
    ~Guard() { n++; }
  };
  std::atomic<int> unwound{0};
  t.clear();
  for (int i = 0; i < 8; i++)
    t.emplace_back([&] {
      coroutine<long>::pull_type c([&](coroutine<long>::push_type& sink) {
        Guard guard{unwound};
        for (;;) sink(1);
      });
      c();
    });
  for (auto& x : t) x.join();
  std::printf("unwound %d\n", unwound.load());
}
