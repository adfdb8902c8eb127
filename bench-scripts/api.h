// SPDX-License-Identifier: MIT
// Code that the cases of the C++ interface's benchmark share. There are four programs, with cases of the same names. The first three are
// linked with api.cpp, and api.go does the same for Go:
//   api        api_*.cpp     this library; its threads are fibers
//   api-std    std_*.cpp     the standard library's means for the purpose, on NPTL
//   api-boost  boost_*.cpp   Boost.Fiber, where it is installed: fibers on one thread
//   api-go     api_*.go      Go, where it is installed
// A case is one line at the end of its file. The driver finds it by itself.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

struct Case {
  const char* name;
  double (*run)();        // returns the nanoseconds of one operation
  double goal = 0;        // this library's, in ns; 0: none
  int cpus = 0;           // number of CPUs to run on, which is also that of workers; 0: all
  const char* what = "";  // one operation, in words

  struct Register;
};
struct Case::Register {
  Case c;
  Register* next = nullptr;
  static inline Register* first = nullptr;
  static inline Register** last = &first;
  Register(Case of) : c(of) {
    *last = this;
    last = &next;
  }
};
#define BENCH_JOIN(a, b) a##b
#define BENCH_NAME(n) BENCH_JOIN(bench_, n)
// CASE("name", function, .goal = 100, .cpus = 1, .what = "…");  what is only needed in api_*.cpp
#define CASE(title, function, ...) \
  static Case::Register BENCH_NAME(__COUNTER__) { \
    Case { .name = title, .run = function __VA_OPT__(, ) __VA_ARGS__ } \
  }

inline uint64_t bench_now() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// Returns the ns of one operation. batch(n) does n operations. It is called once to warm up, and then again and again for a tenth of a
// second.
template <class Batch>
double ns_each(long n, Batch batch) {
  batch(n);
  uint64_t start = bench_now(), now;
  long done = 0;
  do {
    batch(n);
    done += n;
  } while ((now = bench_now()) - start < 100'000'000);
  return static_cast<double>(now - start) / static_cast<double>(done);
}

// Runs body(i) in each of n threads at once, and joins them.
template <class Body>
void in_threads(int n, Body body) {
  std::vector<std::thread> t;
  for (int i = 0; i < n; i++) t.emplace_back([&body, i] { body(i); });
  for (auto& one : t) one.join();
}

// ---- cases of several files ----

// One uncontended lock and unlock. A second thread is made first: in a process that has made none, libc takes its locks without atomic
// instructions.
template <class Mutex>
double lock_unlock() {
  std::thread([] {}).join();
  Mutex m;
  return ns_each(1'000'000, [&](long n) {
    for (long i = 0; i < n; i++) {
      m.lock();
      asm volatile("" ::: "memory");
      m.unlock();
    }
  });
}

// Eight threads lock, count and unlock as fast as they can.
template <class Mutex>
double lock_unlock_8(long n = 40'000) {
  Mutex m;
  return ns_each(n, [&](long all) {
    long count = 0;
    in_threads(8, [&](int) {
      for (long i = 0; i < all / 8; i++) {
        m.lock();
        count++;
        m.unlock();
      }
    });
    if (count != all / 8 * 8) abort();
  });
}

// Two threads that wait for each other by turns. One operation is one wake-up and one wait. `ping(i)` is the first thread's i-th step,
// `pong(i)` the second's.
template <class Ping, class Pong>
double by_turns(long n, Ping ping, Pong pong) {
  return ns_each(n, [&](long all) {
    in_threads(2, [&](int who) {
      for (long i = 1; i <= all / 2; i++) who ? pong(i) : ping(i);
    });
  });
}
