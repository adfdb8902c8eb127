// SPDX-License-Identifier: MIT
// Boost's fibers.
#include <boost/fiber/all.hpp>

#include "api.h"

namespace {

using boost::fibers::fiber;

double spawn_join() {
  return ns_each(20'000, [](long n) {
    for (long i = 0; i < n; i++) fiber([] {}).join();
  });
}

double spawn_join_closure() {
  return ns_each(20'000, [](long n) {
    long a = 1, b = 2, c = 0;
    for (long i = 0; i < n; i++) fiber([&a, &b, &c] { c += a + b; }).join();
  });
}

double spawn_500() {
  return ns_each(5'000, [](long n) {
    std::vector<fiber> fibers(500);
    for (long i = 0; i < n; i += 500) {
      for (auto& f : fibers) f = fiber([] {});
      for (auto& f : fibers) f.join();
    }
  });
}

// The new fiber runs at once, as with this library's call().
double dispatch() {
  return ns_each(20'000, [](long n) {
    for (long i = 0; i < n; i++) fiber(boost::fibers::launch::dispatch, [] {}).join();
  });
}

double yield_16() {
  return ns_each(200'000, [](long n) {
    std::vector<fiber> fibers;
    for (int t = 0; t < 16; t++)
      fibers.emplace_back([n] {
        for (long i = 0; i < n / 16; i++) boost::this_fiber::yield();
      });
    for (auto& f : fibers) f.join();
  });
}

CASE("spawn-join", spawn_join);
CASE("spawn-join-closure", spawn_join_closure);
CASE("spawn-join-500", spawn_500);
CASE("call-join", dispatch);
CASE("reschedule-16", yield_16);

}  // namespace
