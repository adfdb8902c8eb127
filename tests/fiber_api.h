// SPDX-License-Identifier: MIT
// Code that the tests of the fiber API share.
#pragma once
#include "fiberthread/fiber.h"

#include <string.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "sched/chaos.h"
#include "sched/worker.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

constexpr uint64_t kLong = 60'000 * kMs;  // a wait that takes longer hangs

inline FiberRecord* record(FiberRef f) { return reinterpret_cast<FiberRecord*>(reinterpret_cast<uint64_t>(f.handle()) & 0xffff'ffff'ffc0); }
inline bool on_nptl() { return !sched_start(); }

template <class Condition>
void until(Condition condition) {
  while (!condition()) fiberthread_sleep(100'000);
}
inline void until_waits(FiberRef f) {
  until([&] {
    bool waits = record(f)->run.state.load() == State::Parked || record(f)->run.in_own_call.load();
    return waits && !record(f)->handle.fresh.load();
  });
}
// Returns whether the fiber is parked for `what`. A fiber that waits in the kernel does not show here.
inline bool waits_for(FiberRef f, const char* what) {
  return record(f)->run.state.load() == State::Parked && record(f)->wait.reason.what && !strcmp(record(f)->wait.reason.what, what);
}
// Sets one worker and returns true, if its queues run fibers in order. Returns false under chaos and on NPTL.
inline bool one_in_order() {
  if (chaos_seed || options.nptl || options.fail_self_check) return false;
  run_on(1, 0);
  return !on_nptl();
}

// Is made by a fiber. any() returns true if a fiber has been preempted on that fiber's worker since then, itself included.
class Preemptions {
 public:
  bool any() const { return count() != before_; }

 private:
  static uint64_t count() { return fiberthread::self()->run.worker->counts.preemptions.load(); }
  uint64_t before_ = count();
};

// Returns the order of the numbers with which `body` has called its argument. `body` runs in a fiber that has just begun to run, and so is
// seldom preempted in the middle (under an emulator, which has to translate all this code first, each 15th time). It runs again if it was
// preempted, or if the fibers did not run in turn.
inline std::vector<int> order_of(const std::function<void(const std::function<void(int)>&)>& body) {
  for (;;) {
    InTurn in_turn;
    std::atomic<int> n{0}, order[10];
    bool preempted = false;
    Fiber::spawn([&] {
      Fiber::sleep(kMs);
      Preemptions preemptions;
      body([&](int i) { order[n++] = i; });
      preempted = preemptions.any();
    }).join();
    if (in_turn.held() && !preempted) return {order, order + n};
  }
}

inline void* add_one(void* p) { return static_cast<char*>(p) + 1; }
inline void* pass(void* p) { return p; }
inline char place[4];
