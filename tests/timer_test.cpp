// SPDX-License-Identifier: MIT
// The timer wheel: it runs timers that are due, none too early, and no cancelled one.
// alone: sched
#include "sched/timer.h"

#include <stdlib.h>

#include <vector>

#include "sched/fiber.h"
#include "tests/test.h"

using namespace fiberthread;

namespace {
// A record in state Running keeps an unpark as its latch.
bool fired(FiberRecord& f) { return f.run.pending_unpark.load() != 0; }
void make_running(FiberRecord& f) { f.run.state.store(State::Running); }
}  // namespace

Test(timer, runs_what_is_due_and_only_that) {
  TimerWheel wheel;
  constexpr int kTimers = 300;
  static FiberRecord fibers[kTimers];
  std::vector<Timer> timers(kTimers);
  unsigned seed = 7;
  uint64_t start = now_ns();
  for (int i = 0; i < kTimers; i++) {
    make_running(fibers[i]);
    // From microseconds to days.
    uint64_t in = static_cast<uint64_t>(rand_r(&seed)) << (rand_r(&seed) % 18);
    timers[i] = Timer{&fibers[i], start + in};
    wheel.add(timers[i]);
  }
  for (int i = 0; i < kTimers; i += 5) wheel.cancel(timers[i]);
  uint64_t now = start;
  while (wheel.next() != kNever) {
    cr_assert(wheel.next() > now, "a bucket that was opened is still the next");
    now = wheel.next();
    wheel.run(now);
    for (int i = 0; i < kTimers; i++) {
      if (i % 5 == 0) cr_assert(!fired(fibers[i]));
      else cr_assert(!fired(fibers[i]) || timers[i].deadline <= now, "early");
    }
  }
  for (int i = 0; i < kTimers; i++) cr_assert_eq(fired(fibers[i]), i % 5 != 0);
}

Test(timer, never_and_the_past) {
  TimerWheel wheel;
  static FiberRecord far, past;
  make_running(far);
  make_running(past);
  Timer never{&far, kNever - 1}, late{&past, 1};
  wheel.add(never);
  wheel.add(late);
  wheel.run(now_ns() + 1'000'000);
  cr_assert(fired(past) && !fired(far));
  wheel.cancel(never);
  cr_assert_eq(wheel.next(), kNever);
  wheel.cancel(late);  // a second time, after it has run
}
