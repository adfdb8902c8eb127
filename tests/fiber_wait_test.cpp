// SPDX-License-Identifier: MIT
// Yield, wake-up and sleep (fiberthread.h, fiber.h): each sentence of the contract.
// tests/programs/quick/fiber_api.sh runs this with one and many workers, under FIBERTHREAD_CHAOS and on NPTL as well.
#include "fiberthread/fiber.h"

#include "tests/test.h"

#include <errno.h>
#include <unistd.h>

#include <initializer_list>
#include <optional>
#include <vector>

#include "sched/chaos.h"
#include "sched/worker.h"
#include "tests/single_steps.h"
#include "tests/fiber_api.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(fiber_wait, woken_ones_run_in_the_order_of_the_wake_ups) {
  if (!one_in_order()) return;
  for (int others = 0; others <= 3;) {
    InTurn in_turn;
    std::atomic<int> ran{0}, order[100];
    std::vector<Fiber> fibers;
    for (int i = 0; i < 100; i++)
      fibers.push_back(Fiber::spawn([&, i] {
        Fiber::yield();
        order[ran++] = i;
      }));
    for (Fiber& f : fibers) until_waits(f);
    // Fibers that run in turn with the others.
    std::atomic<bool> stop{false};
    std::vector<Fiber> more;
    for (int i = 0; i < others; i++)
      more.push_back(Fiber::spawn([&] {
        while (!stop) Fiber::reschedule();
      }));
    Fiber::sleep(kMs);
    bool switched = false;
    std::optional<Preemptions> preemptions;
    // The fiber that wakes has just begun to run, so it is seldom preempted in the middle.
    Fiber::spawn([&] {
      Fiber::sleep(kMs);
      preemptions.emplace();
      for (Fiber& f : fibers) {
        f.wakeup();
        switched |= ran != 0;
      }
    }).join();
    for (Fiber& f : fibers) f.join();
    bool preempted = preemptions->any();  // also preemptions of woken fibers, before they have noted their number
    stop = true;
    for (Fiber& f : more) f.join();
    if (!in_turn.held() || preempted) continue;
    cr_assert(!switched);
    for (int i = 0; i < 100; i++) cr_assert_eq(order[i], i, "place %d has %d", i, order[i].load());
    others += 3;
  }
}

Test(fiber_wait, wake_ups_are_kept_once_and_not_for_oneself) {
  std::atomic<int> yields{0};
  std::atomic<bool> go{false};
  Fiber f = Fiber::spawn([&] {
    while (!go) {
    }
    cr_assert_eq(Fiber::self().wakeup(), 0);  // a wake-up of oneself does nothing
    while (Fiber::yield() == 0) yields++;
  });
  // The fiber runs, or waits for its turn.
  for (int i = 0; i < 5; i++) cr_assert_eq(f.wakeup(), 0);
  go = true;
  until_waits(f);
  cr_assert_eq(yields, 1);
  // Two wake-ups of a runnable fiber count once. But its worker may have run it between the two.
  int before = yields;
  f.wakeup();
  f.wakeup();
  until([&] { return yields > before && record(f)->run.state.load() == State::Parked; });
  cr_assert_leq(yields, before + 2);
  cr_assert_eq(Fiber::self().wakeup(), 0);
  cr_assert_eq(Fiber::yield_timeout(kMs), ETIMEDOUT);
  f.cancel();
  f.join();
}

Test(fiber_wait, new_and_ended_ones_are_not_woken) {
  int e = -1;
  Fiber f = Fiber::create([&] { e = Fiber::yield_timeout(5 * kMs); });
  cr_assert_eq(f.wakeup(), 0);
  f.start();
  until([&] { return record(f)->join.done.load() != 0; });
  cr_assert_eq(e, ETIMEDOUT);
  cr_assert_eq(f.wakeup(), 0);
  FiberRef r = f;
  f.join();
  cr_assert_eq(r.wakeup(), ESRCH);
}

Test(fiber_wait, a_wake_up_shows_what_was_done_before) {
  int data = 0;
  std::atomic<int> turn{0};
  Fiber f = Fiber::spawn([&] {
    for (int i = 1; i <= 2000; i++) {
      while (Fiber::yield() != 0) {
      }
      cr_assert_geq(data, i);
      turn = i;
    }
  });
  for (int i = 1; i <= 2000; i++) {
    data = i;
    f.wakeup();
    while (turn < i) Fiber::reschedule();
  }
  f.join();
}

Test(fiber_wait, a_signal_handler_wakes) {
  static FiberRef sleeper;
  Fiber f = Fiber::spawn([] { cr_assert_eq(Fiber::yield_timeout(kLong), 0); });
  sleeper = f;
  signal(SIGUSR1, [](int) { sleeper.wakeup(); });
  until_waits(f);
  raise(SIGUSR1);
  cr_assert_eq(f.join(), 0);
}

Test(fiber_wait, timeouts_are_not_early) {
  for (uint64_t ns : {uint64_t{0}, uint64_t{1}, kMs, 5 * kMs}) {
    auto times = [ns] {
      uint64_t start = now_ns();
      cr_assert_eq(Fiber::yield_timeout(ns), ETIMEDOUT);
      cr_assert_geq(now_ns(), start + ns);
      start = now_ns();
      cr_assert_eq(Fiber::sleep(ns), 0);
      cr_assert_geq(now_ns(), start + ns);
      Fiber f = Fiber::create([] {});
      start = now_ns();
      cr_assert_eq(f.join_timeout(ns), ETIMEDOUT);
      cr_assert_geq(now_ns(), start + ns);
    };
    times();
    Threads t;
    t.fiber(times);
    t.kernel(times);
  }
}

Test(fiber_wait, wake_ups_do_not_end_other_waits) {
  for (bool told = false; !told;) {
    std::atomic<bool> slept{false};
    uint64_t ns = 0;
    int ends[3];
    Fiber f = Fiber::spawn([&] {
      uint64_t start = now_ns();
      ends[0] = Fiber::sleep(20 * kMs);
      ns = now_ns() - start;
      slept = true;
      ends[1] = Fiber::yield_timeout(kLong);
      ends[2] = Fiber::yield_timeout(kMs);
    });
    until([&] { return slept || waits_for(f, "sleep"); });
    for (int i = 0; i < 3; i++) f.wakeup();
    told = !slept;
    f.join();
    cr_assert_eq(ends[0], 0);
    cr_assert_geq(ns, 20 * kMs);
    cr_assert_eq(ends[1], 0);
    if (told) cr_assert_eq(ends[2], ETIMEDOUT);
  }
}

Test(fiber_wait, reschedule_goes_behind_those_that_are_ready) {
  if (!one_in_order()) return;
  std::vector<int> order = order_of([](auto& ran) {
    std::vector<Fiber> fibers;
    // These are so few that sysmon leaves them in this queue.
    for (int i = 0; i < 3; i++) fibers.push_back(Fiber::spawn([&, i] { ran(i); }));
    Fiber::reschedule();
    ran(99);
    for (Fiber& f : fibers) f.join();
  });
  cr_assert(order == (std::vector<int>{0, 1, 2, 99}));
}

#if defined(__x86_64__)  // the emulator cannot single-step
// A handle may become stale during a wake-up by it. That wake-up takes none from the next fiber that has the record. Single steps stop a
// kernel thread at each instruction of fiberthread_wakeup(), until the fiber has ended and the next one was woken.
Test(fiber_wait, a_late_wake_up_takes_none_from_the_next_fiber, .timeout = 240) {
  if (on_nptl()) cr_skip_test("no records");
  if (chaos_seed) return;  // its delays look like the end of the call
  int tried = 0;
  for (int step = 0;; step++) {
    Fiber first = Fiber::spawn([] { Fiber::yield(); });
    fiberthread_t handle = first.handle();
    FiberRecord* place = record(first);
    until_waits(first);
    Threads t;
    bool all = !steps::run(t, step, [=] { fiberthread_wakeup(handle); });
    first.cancel();  // the fiber may be marked as woken, but not be awake yet
    cr_assert_eq(first.join(), 0);
    if (all) break;
    std::atomic<bool> woken{false};
    int e = -1;
    std::vector<Fiber> others;
    for (int i = 0; i < 200; i++) {
      Fiber next = Fiber::create([&] {
        while (!woken) Fiber::reschedule();
        e = Fiber::yield_timeout(kLong);
      });
      if (record(next) != place) {
        others.push_back(std::move(next));
        continue;
      }
      tried++;
      next.start();
      next.wakeup();
      steps::stage = steps::kGoOn;
      t.join();
      woken = true;
      cr_assert_eq(next.join(), 0);
      cr_assert_eq(e, 0, "stopped at instruction %d", step);
      break;
    }
    steps::stage = steps::kGoOn;
  }
  cr_assert(tried > 10, "%d times", tried);
}
#endif

// No wake-up is lost. Two fibers pass a turn to and fro, and a third one disturbs them.
Test(fiber_wait, wake_ups_are_not_lost) {
  for (bool kernel : {false, true}) {
    constexpr int kTurns = 3000;
    std::atomic<int> turn{0};
    std::atomic<fiberthread_t> handle[2] = {nullptr, nullptr};
    std::atomic<bool> over{false};
    auto player = [&](int i) {
      handle[i] = fiberthread_self();
      while (!handle[1 - i]) Fiber::reschedule();
      for (int k = i; k < kTurns; k += 2) {
        while (turn < k) cr_assert_eq(Fiber::yield(), 0);
        turn = k + 1;
        fiberthread_wakeup(handle[1 - i]);
      }
    };
    Threads t;
    t.fiber([&] { player(0); });
    if (kernel) t.kernel([&] { player(1); });
    else t.fiber([&] { player(1); });
    Threads disturbing;
    disturbing.kernel([&] {
      while (!over) {
        usleep(300);
        if (handle[0] && handle[1] && turn < kTurns - 10) fiberthread_wakeup(handle[0]);
      }
    });
    t.join();
    over = true;
    cr_assert_eq(turn, kTurns);
  }
}

}  // namespace
