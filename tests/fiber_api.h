// SPDX-License-Identifier: MIT
// What the tests of the fibers' own interface have in common.
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

constexpr uint64_t kLong = 60'000 * kMs;  // against hangs

inline FiberRecord* record(FiberRef f) { return reinterpret_cast<FiberRecord*>(reinterpret_cast<uint64_t>(f.handle()) & 0xffff'ffff'ffc0); }
inline bool on_nptl() { return !sched_start(); }

template <class Condition>
void until(Condition condition) {
  while (!condition()) fiberthread_sleep(100'000);
}
inline void until_waits(FiberRef f) {
  until([&] { return record(f)->run.state.load() == State::Parked && !record(f)->handle.fresh.load(); });
}
// A call that waits in the kernel cannot be told from one that is about to.
inline bool waits_for(FiberRef f, const char* what) {
  return record(f)->run.state.load() == State::Parked && record(f)->wait.reason.what && !strcmp(record(f)->wait.reason.what, what);
}
// Queues of one worker are in order, unless chaos is wanted.
inline bool one_in_order() {
  if (chaos_seed || options.force_nptl || options.fail_self_check) return false;
  run_on(1);
  return !on_nptl();
}

// Of a fiber: whether anybody on its worker has been preempted since, itself included.
class Preemptions {
 public:
  bool any() const { return count() != before_; }

 private:
  static uint64_t count() { return fiberthread::self()->run.worker->counts.preemptions.load(); }
  uint64_t before_ = count();
};

// The order in which `body` has called its argument. It runs in a fiber that has just begun to run, and is seldom preempted in the middle
// (under an emulator, which has to translate all this first, each 15th time); and again, if it was, or if they did not run in turn.
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
