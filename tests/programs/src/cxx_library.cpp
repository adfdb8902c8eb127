// SPDX-License-Identifier: MIT
// The parts of the C++ library that use POSIX threads. Each part prints a result that does not depend on the order of threads.
#include <atomic>
#include <barrier>
#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <iostream>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <semaphore>
#include <shared_mutex>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <errno.h>
#include <unistd.h>

using namespace std::chrono_literals;

template <typename F>
void in_threads(int n, F f) {
  std::vector<std::thread> threads;
  for (int i = 0; i < n; i++) threads.emplace_back([=] { f(i); });
  for (auto& t : threads) t.join();
}

void say(const char* part, long result) { std::cout << part << ' ' << result << std::endl; }

void futures() {
  std::vector<std::future<long>> all;
  for (int i = 0; i < 100; i++) all.push_back(std::async(std::launch::async, [i] { return std::this_thread::yield(), long{i} * i; }));
  long sum = 0;
  for (auto& f : all) sum += f.get();
  say("async", sum);

  std::promise<int> never, later;
  auto none = never.get_future(), some = later.get_future();
  say("not ready", none.wait_for(10ms) == std::future_status::timeout);
  std::thread setter([&] {
    std::this_thread::sleep_for(5ms);
    later.set_value(7);
  });
  say("promise", some.get());
  setter.join();

  std::shared_future<int> shared = std::async(std::launch::async, [] { return std::this_thread::sleep_for(2ms), 3; });
  std::atomic<int> seen = 0;
  in_threads(20, [&, shared](int) { seen += shared.get(); });
  say("shared_future", seen);

  std::packaged_task<int(int)> task([](int x) -> int { throw std::out_of_range(std::to_string(x)); });
  auto broken = task.get_future();
  std::thread(std::move(task), 12).join();
  try {
    broken.get();
  } catch (const std::out_of_range& e) {
    say("packaged_task", std::stoi(e.what()));
  }
  std::future<int> orphan = std::promise<int>().get_future();
  try {
    orphan.get();
  } catch (const std::future_error& e) {
    say("broken promise", e.code() == std::future_errc::broken_promise);
  }
}

void stopping() {
  std::atomic<long> rounds = 0;
  std::atomic<bool> called = false;
  {
    std::jthread spinner([&](std::stop_token stop) {
      std::stop_callback call(stop, [&] { called = true; });
      while (!stop.stop_requested()) rounds++, std::this_thread::yield();
    });
    while (rounds < 100) std::this_thread::yield();
  }
  say("jthread", called && rounds >= 100);

  std::mutex m;
  std::condition_variable_any cv;
  std::atomic<int> stopped = 0;
  {
    std::vector<std::jthread> waiting;
    for (int i = 0; i < 10; i++)
      waiting.emplace_back([&](std::stop_token stop) {
        std::unique_lock lock(m);
        if (!cv.wait(lock, stop, [] { return false; })) stopped++;
      });
    std::this_thread::sleep_for(2ms);
  }
  say("stopped while waiting", stopped);
}

void meeting() {
  std::latch latch(50), go(1);
  std::atomic<int> through = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 50; i++)
    threads.emplace_back([&] {
      latch.count_down();
      go.wait();
      through++;
    });
  latch.wait();
  go.count_down();
  threads.clear();
  say("latch", through);

  int completions = 0;
  std::atomic<int> wrong = 0;
  auto done = [&]() noexcept { completions++; };
  std::barrier barrier(8, done);
  in_threads(8, [&](int i) {
    for (int round = 0; round < 50; round++) {
      if ((i + round) % 5 == 0) std::this_thread::yield();
      barrier.arrive_and_wait();
      if (completions != 2 * round + 1) wrong++;
      barrier.arrive_and_wait();
    }
  });
  say("barrier", completions * 1000 + wrong);

  std::counting_semaphore<4> tokens(4);
  std::atomic<int> inside = 0, most = 0;
  in_threads(32, [&](int) {
    for (int i = 0; i < 10; i++) {
      tokens.acquire();
      int now = ++inside, old = most;
      while (now > old && !most.compare_exchange_weak(old, now)) {
      }
      std::this_thread::yield();
      inside--;
      tokens.release();
    }
  });
  std::binary_semaphore none(0);
  say("semaphore", most >= 1 && most <= 4 && inside == 0 && !none.try_acquire_for(5ms));

  std::atomic<int> turn = 0;
  in_threads(10, [&](int i) {
    for (int round = 0; round < 20; round++) {
      for (int t; (t = turn) % 10 != i;) turn.wait(t);
      turn++;
      turn.notify_all();
    }
  });
  say("atomic wait", turn);

  std::atomic_flag flag;
  std::jthread waiter([&] { flag.wait(false); });
  std::this_thread::sleep_for(1ms);
  flag.test_and_set();
  flag.notify_one();
}

void locking() {
  std::shared_timed_mutex shared;
  std::map<int, int> map;
  std::atomic<int> bad = 0;
  in_threads(16, [&](int i) {
    for (int k = 0; k < 50; k++) {
      if (k % 5 == i % 5) {
        std::unique_lock lock(shared);
        map[k] += 1;
        std::this_thread::yield();
        map[k + 1000] += 1;
      } else {
        std::shared_lock lock(shared, std::defer_lock);
        while (!lock.try_lock_for(1s)) {
        }
        std::this_thread::yield();
        if (map.contains(k) && map.at(k) != map.at(k + 1000)) bad++;
      }
    }
  });
  long sum = 0;
  for (auto [k, v] : map) sum += v;
  say("shared_timed_mutex", sum * 1000 + bad);
  shared.lock_shared();
  in_threads(1, [&](int) { say("write lock times out", !shared.try_lock_for(5ms)); });
  shared.unlock_shared();

  std::recursive_timed_mutex recursive;
  recursive.lock();
  recursive.lock();
  in_threads(1, [&](int) { say("recursive lock times out", !recursive.try_lock_until(std::chrono::steady_clock::now() + 5ms)); });
  recursive.unlock();
  recursive.unlock();
  in_threads(1, [&](int) {
    bool got = recursive.try_lock();
    if (got) recursive.unlock();
    say("recursive lock is free", got);
  });

  std::mutex a, b, c;
  long total = 0;
  in_threads(12, [&](int i) {
    for (int k = 0; k < 100; k++) {
      if (i % 2) {
        std::scoped_lock lock(a, b, c);
        total++;
      } else {
        std::scoped_lock lock(c, a, b);
        total++;
      }
    }
  });
  say("scoped_lock", total);

  std::deque<int> queue;
  std::mutex m;
  std::condition_variable filled, emptied;
  std::atomic<long> taken = 0;
  in_threads(16, [&](int i) {
    for (int k = 0; k < 200; k++) {
      std::unique_lock lock(m);
      if (i % 2) {
        emptied.wait(lock, [&] { return queue.size() < 4; });
        queue.push_back(k);
        filled.notify_one();
      } else {
        filled.wait(lock, [&] { return !queue.empty(); });
        taken += queue.front();
        queue.pop_front();
        emptied.notify_one();
      }
    }
  });
  say("bounded queue", taken);
  std::unique_lock lock(m);
  say("condition times out", filled.wait_until(lock, std::chrono::system_clock::now() + 5ms) == std::cv_status::timeout);
}

void once() {
  std::once_flag flag;
  std::atomic<int> tries = 0, thrown = 0, after = 0;
  in_threads(16, [&](int) {
    try {
      std::call_once(flag, [&] {
        std::this_thread::sleep_for(1ms);
        if (++tries <= 3) throw std::runtime_error("not yet");
      });
      after += tries == 4;
    } catch (const std::runtime_error&) {
      thrown++;
    }
  });
  say("call_once", tries * 10000 + thrown * 100 + after);

  // A static whose initialization needs several tries, guarded by the compiler.
  static std::atomic<int> built = 0;
  std::atomic<int> failures = 0;
  struct Slow {
    int value;
    Slow() : value(1) {
      std::this_thread::sleep_for(1ms);
      if (++built < 3) throw 1;
    }
  };
  in_threads(16, [&](int) {
    try {
      static Slow slow;
      if (slow.value != 1) std::abort();
    } catch (int) {
      failures++;
    }
  });
  say("static", built * 100 + failures);
}

std::atomic<int> destroyed = 0, late = 0;
struct Guest {
  std::string name = std::string(100, 'g');
  ~Guest() { destroyed += name.size() == 100; }
};
thread_local Guest guest;
thread_local std::unique_ptr<int> number;
struct MakesAnother {  // its destructor makes a thread_local again
  ~MakesAnother() {
    static thread_local Guest second;
    late += second.name.size() == 100;
  }
};

void locals() {
  in_threads(40, [](int i) {
    thread_local MakesAnother another;
    (void)&another;
    guest.name[0] = 'h';
    number = std::make_unique<int>(i);
    for (int k = 0; k < 10; k++) {
      std::this_thread::yield();
      if (*number != i) std::abort();
    }
  });
  say("thread_local", destroyed * 100 + late);

  std::atomic<int> at_exit = 0;
  std::promise<int> promise;
  auto future = promise.get_future();
  std::thread([&, p = std::move(promise)]() mutable {
    thread_local struct Last {
      std::atomic<int>* n = nullptr;
      ~Last() { ++*n; }
    } last;
    last.n = &at_exit;
    p.set_value_at_thread_exit(1);
  }).detach();
  future.get();
  while (at_exit != 1) std::this_thread::yield();
  say("at thread exit", at_exit);
}

// Exceptions are thrown, caught and active across waits. The runtime's state of each thread has to move with the thread.
void exceptions() {
  std::atomic<int> good = 0;
  in_threads(50, [&](int i) {
    struct Unwound {
      int i;
      ~Unwound() {
        for (int k = 0; k < 3; k++) std::this_thread::sleep_for(std::chrono::microseconds(50 * (i % 5)));
        if (std::uncaught_exceptions() != 1) std::abort();
      }
    };
    for (int k = 0; k < 10; k++) {
      try {
        Unwound unwound{i};
        std::this_thread::yield();
        throw i * 100 + k;
      } catch (int x) {
        std::this_thread::sleep_for(100us);
        try {
          try {
            throw std::string("inner ") + std::to_string(i);
          } catch (std::string& s) {
            std::this_thread::yield();
            if (s != "inner " + std::to_string(i)) std::abort();
            throw;
          }
        } catch (std::string& s) {
          good += s.size() > 6;
        }
        try {
          std::this_thread::yield();
          throw;  // rethrows the outer exception
        } catch (int y) {
          good += x == y && y == i * 100 + k;
        }
      }
    }
  });
  say("exceptions", good);

  std::vector<std::exception_ptr> carried(20);
  in_threads(20, [&](int i) {
    try {
      try {
        throw std::runtime_error(std::to_string(i));
      } catch (...) {
        std::throw_with_nested(std::logic_error("outer"));
      }
    } catch (...) {
      carried[i] = std::current_exception();
    }
  });
  std::atomic<int> sum = 0;
  in_threads(20, [&](int i) {
    try {
      std::rethrow_exception(carried[19 - i]);
    } catch (const std::logic_error& e) {
      try {
        std::this_thread::yield();
        std::rethrow_if_nested(e);
      } catch (const std::runtime_error& inner) {
        sum += std::stoi(inner.what());
      }
    }
  });
  say("exception_ptr", sum);

  try {
    std::thread t;
    t.join();
  } catch (const std::system_error& e) {
    say("join of none", e.code().value() == EINVAL);
  }
  std::unique_lock<std::mutex> nothing;
  try {
    nothing.lock();
  } catch (const std::system_error& e) {
    say("lock of none", e.code().value() == EPERM);
  }
}

int main() {
  futures();
  stopping();
  meeting();
  locking();
  once();
  locals();
  exceptions();

  // When the process ends, there are threads of every kind: asleep, waiting, computing, in a system call.
  static auto& held = *new std::mutex;  // never destroyed: the destructor of a condition variable waits for its waiters
  static auto& never = *new std::condition_variable_any;
  held.lock();
  for (int i = 0; i < 4; i++) {
    std::thread([] { std::this_thread::sleep_for(1h); }).detach();
    std::thread([] { held.lock(); }).detach();
    std::thread([] {
      std::mutex m;
      std::unique_lock lock(m);
      never.wait(lock, [] { return false; });
    }).detach();
    std::thread([] {
      for (volatile long n = 0;; n = n + 1) {
      }
    }).detach();
    std::thread([] {
      for (;;) pause();
    }).detach();
  }
  std::this_thread::sleep_for(10ms);
  static struct AtEnd {
    ~AtEnd() { std::cout << "the end" << std::endl; }
  } at_end;
  return 0;
}
