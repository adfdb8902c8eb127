// SPDX-License-Identifier: MIT
// C++'s threads and all its ways to wait: async, jthread, latch, barrier, semaphore, atomic wait, shared mutex, exceptions between
// threads, and an exit with threads still running.
#include <atomic>
#include <barrier>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <future>
#include <latch>
#include <mutex>
#include <numeric>
#include <semaphore>
#include <shared_mutex>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

int main() {
  std::vector<std::future<int>> f;
  for (int i = 0; i < 100; i++) f.push_back(std::async(std::launch::async, [i] { return i * i; }));
  int sum = 0;
  for (auto& x : f) sum += x.get();
  printf("%d\n", sum);

  std::promise<int> promise;
  std::exception_ptr caught;
  std::thread thrower([&] {
    try {
      std::this_thread::sleep_for(1ms);
      throw std::runtime_error("across");
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  });
  try {
    promise.get_future().get();
  } catch (std::runtime_error& e) {
    printf("%s\n", e.what());
  }
  thrower.join();

  std::atomic<int> turn{0}, loops{0};
  {
    std::latch ready(8);
    std::barrier meet(8);
    std::counting_semaphore<4> tokens(4);
    std::shared_timed_mutex shared;
    long value = 0;
    std::vector<std::jthread> t;
    for (int i = 0; i < 8; i++)
      t.emplace_back([&, i](std::stop_token) {
        ready.arrive_and_wait();
        for (int k = 0; k < 50; k++) {
          tokens.acquire();
          if (k % 5 == 0) {
            std::unique_lock lock(shared);
            value++;
          } else {
            std::shared_lock lock(shared, 100ms);
          }
          tokens.release();
          meet.arrive_and_wait();
        }
        for (int now; (now = turn.load()) != i;) turn.wait(now);
        turn++;
        turn.notify_all();
      });
    t.clear();
    printf("%ld %d\n", value, turn.load());
  }
  std::mutex m;
  std::condition_variable_any any;
  std::jthread stopped([&](std::stop_token stop) {
    std::unique_lock lock(m);
    any.wait(lock, stop, [] { return false; });
    loops++;
  });
  stopped.request_stop();
  stopped.join();
  std::condition_variable timed;
  std::unique_lock lock(m);
  printf("%d %d\n", loops.load(), timed.wait_for(lock, 5ms) == std::cv_status::timeout);
  lock.unlock();

  std::promise<void> at_exit;
  auto done = at_exit.get_future();
  std::thread([&] { at_exit.set_value_at_thread_exit(); }).detach();
  done.get();
  static std::atomic<bool> started{false};
  std::thread([] {
    started = true;
    for (;;) std::this_thread::sleep_for(1h);
  }).detach();
  std::thread([] {
    for (volatile long i = 0;; i++) {
    }
  }).detach();
  while (!started) std::this_thread::yield();
  puts("exit");
}
