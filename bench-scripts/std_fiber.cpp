// SPDX-License-Identifier: MIT
// Threads of the standard library.
#include <sched.h>

#include <condition_variable>
#include <mutex>

#include "api.h"

namespace {

double spawn_join() {
  return ns_each(2'000, [](long n) {
    for (long i = 0; i < n; i++) std::thread([] {}).join();
  });
}

double spawn_500() {
  return ns_each(500, [](long n) {
    std::vector<std::thread> threads(500);
    for (long i = 0; i < n; i += 500) {
      for (auto& t : threads) t = std::thread([] {});
      for (auto& t : threads) t.join();
    }
  });
}

double yield_16() {
  return ns_each(100'000, [](long n) {
    in_threads(16, [n](int) {
      for (long i = 0; i < n / 16; i++) sched_yield();
    });
  });
}

CASE("spawn-join", spawn_join);
CASE("spawn-join-closure", spawn_join);
CASE("spawn-join-500", spawn_500);
CASE("reschedule-16", yield_16);

}  // namespace
