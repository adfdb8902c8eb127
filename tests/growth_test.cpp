// SPDX-License-Identifier: MIT
// Which fibers count as spinners, for which slots grow, and when there is a reserve. The worker and its fiber are made up, and nothing runs.
// alone: sched
#include "sched/run/growth.h"

#include "sched/syscall.h"
#include "tests/test.h"

using namespace fiberthread;

namespace {

struct Machine {
  Worker worker;
  Slot slot;
  FiberRecord fiber;
  Growth growth;
  Waiting waiting = Waiting::Nobody;

  Machine() {
    worker.run.slot = &slot;
    worker.run.running.store(&fiber);
    worker.run.heartbeat.store(1);
    worker.thread.tid = static_cast<int>(raw_syscall(SYS_gettid));  // its CPU time is that of the test
  }

  // Returns in how many of sysmon's looks the fiber counted.
  uint32_t look(uint32_t times, bool progress = false) {
    uint32_t before = growth.spinners;
    for (uint32_t i = 0; i < times; i++) growth.count(&worker, progress, waiting);
    return growth.spinners - before;
  }
};

void compute(uint64_t ns) {
  for (uint64_t begun = cpu_time_of_thread(0); cpu_time_of_thread(0) - begun < ns;) {
  }
}

}  // namespace

Test(growth, computing_while_nobody_waits_is_not_spinning) {
  static Machine m;
  m.look(1);
  compute(Growth::kStuckNs);
  cr_assert_eq(m.look(1000), 0u);
  m.waiting = Waiting::Others;  // only from here on could it have been asked to give way
  cr_assert_eq(m.look(Growth::kStuckLooks - 1), 0u);
}

Test(growth, a_fiber_that_cannot_be_stopped_counts_as_a_spinner) {
  static Machine m;
  m.waiting = Waiting::Others;
  m.look(1);
  compute(Growth::kStuckNs);
  cr_assert_eq(m.look(Growth::kStuckLooks - 2), 0u);
  cr_assert_eq(m.look(10), 10u);
  cr_assert_eq(m.look(1, true), 0u);
  cr_assert_eq(m.look(Growth::kStuckLooks - 1), 0u);
  m.waiting = Waiting::Nobody;
  cr_assert_eq(m.look(1000), 0u);
}

Test(growth, a_worker_that_lacks_the_cpu_is_not_stuck) {
  static Machine m;
  m.waiting = Waiting::Others;
  cr_assert_eq(m.look(2 * Growth::kStuckLooks), 0u);
  compute(Growth::kStuckNs);
  cr_assert_eq(m.look(1), 1u);
}

Test(growth, beside_hogs_a_hog_may_have_a_long_turn) {
  static Machine m;
  m.waiting = Waiting::Hogs;
  m.look(2 * Growth::kStuckLooks);
  compute(Growth::kStuckNs);
  cr_assert_eq(m.look(1), 0u);
  m.growth.decide(m.waiting);
  m.waiting = Waiting::Others;  // only from here on is it to give way at the next tick
  cr_assert_eq(m.look(1), 0u);
  m.growth.decide(m.waiting);
  m.look(2 * Growth::kStuckLooks);
  compute(Growth::kStuckNs);
  cr_assert_eq(m.look(1), 1u);
  m.waiting = Waiting::Hogs;
  cr_assert_eq(m.look(1), 0u);
  compute(Growth::kStuckBesideHogsNs);
  cr_assert_eq(m.look(1), 1u);
}

Test(growth, a_hog_in_one_loop_counts_at_once) {
  static Machine m;
  m.fiber.turns.preempted.store(3);
  cr_assert_eq(m.look(1), 0u);
  m.fiber.turns.place.waits.store(LoopPlace::kEnough);
  cr_assert_eq(m.look(1), 1u);
  m.worker.run.revoked.store(kTaken);  // its worker goes on without a slot
  cr_assert_eq(m.look(1), 0u);
  m.worker.run.revoked.store(kKept);
  m.worker.run.slot = nullptr;
  cr_assert_eq(m.look(1), 0u);
}

#ifdef ALONE  // Elsewhere the test's framework has threads, which are fibers. Their sysmon takes the reserve back.
// Twenty looks more that find a long run in the only slot than looks that do not; then it stays until as many do not.
Test(growth, a_reserve_comes_where_long_runs_hold_the_slots_most_of_the_time) {
  static Machine m;
  options.reserve = 2;
  want_slots(1);
  auto looks = [](uint32_t times, bool long_run) {
    m.fiber.run.heavy.store(long_run);
    for (uint32_t i = 0; i < times; i++) {
      m.look(1);
      m.growth.decide(m.waiting);
    }
    return reserve_is_wanted();
  };
  cr_assert_not(looks(Growth::kNeedsReserve - 1, true));
  cr_assert_not(looks(5, false));
  cr_assert_not(looks(5, true));
  cr_assert(looks(1, true));
  cr_assert(looks(1000, true));
  cr_assert(looks(Growth::kMostLong - 1, false));
  cr_assert_not(looks(1, false));
}
#endif
