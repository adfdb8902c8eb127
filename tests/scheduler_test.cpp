// SPDX-License-Identifier: MIT
// park_if, unpark, join, timers, and which worker runs what.
// alone: sched
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

#include "sched/chaos.h"
#include "sched/poller.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"
#include "sched/worker.h"
#include "tests/test.h"

#include "tests/fibers.h"

using namespace fiberthread;
using namespace fibers;

namespace {

void use_workers(uint32_t n) { options.workers = n; }

std::atomic<uint32_t> flag{0};
std::atomic<FiberRecord*> waiter{nullptr};

void* wait_for_flag(void*) {
  waiter = self();
  while (flag.load() == 0) park_if(&flag, 0, {"test"});
  return nullptr;
}

void park_and_unpark(uint32_t workers) {
  use_workers(workers);
  for (int round = 0; round < 2000; round++) {
    flag = 0;
    waiter = nullptr;
    Handle t = spawn(wait_for_flag);
    while (!waiter.load()) give_way();
    if (round % 3 == 0) give_way();
    flag = 1;
    unpark(waiter);
    join(t);
  }
}

}  // namespace

Test(scheduler, no_unpark_is_lost_1) { park_and_unpark(1); }
Test(scheduler, no_unpark_is_lost_2) { park_and_unpark(2); }
Test(scheduler, no_unpark_is_lost_16) { park_and_unpark(16); }

// Two fibers wake each other in turn. Each wait may find a latch that was left from before.
Test(scheduler, ping_pong) {
  use_workers(2);
  static std::atomic<uint32_t> turn{0};
  static std::atomic<FiberRecord*> players[2];
  auto play = [](void* p) -> void* {
    auto me = static_cast<uint32_t>(reinterpret_cast<long>(p));
    players[me] = self();
    while (!players[1 - me].load()) give_way();
    for (uint32_t i = 0; i < 50000; i++) {
      uint32_t now;
      while ((now = turn.load()) % 2 != me) park_if(&turn, now, {"test"});
      turn = now + 1;
      unpark(players[1 - me]);
    }
    return nullptr;
  };
  Handle a = spawn(play, reinterpret_cast<void*>(0L)), b = spawn(play, reinterpret_cast<void*>(1L));
  join(a);
  join(b);
  cr_assert_eq(turn.load(), 100000u);
}

Test(scheduler, deadlines_pass_and_are_never_early) {
  use_workers(2);
  static std::atomic<uint32_t> never{0}, early{0};
  auto naps = [](void* p) -> void* {
    for (uint64_t i = 0; i < 20; i++) {
      uint64_t deadline = now_ns() + (reinterpret_cast<uintptr_t>(p) * 37 + i * 101) % 3000 * 1000;
      while (park_if(&never, 0, {"test"}, deadline)) {
      }
      early += now_ns() < deadline;
    }
    return nullptr;
  };
  Handle t[100];
  for (uintptr_t i = 0; i < 100; i++) t[i] = spawn(naps, reinterpret_cast<void*>(i));
  for (auto& x : t) join(x);
  cr_assert_eq(early.load(), 0u);
}

Test(scheduler, a_deadline_too_far_does_not_overflow) {
  use_workers(1);
  static std::atomic<uint32_t> never{0};
  Handle t = spawn([](void*) -> void* {
    waiter = self();
    park_if(&never, 0, {"test"}, kNever - 1);
    return nullptr;
  });
  while (!waiter.load()) give_way();
  while (waiter.load()->run.state.load() != State::Parked) give_way();
  unpark(waiter);
  join(t);
}

// Fibers that compute start on all workers, wherever they were made.
Test(scheduler, work_spreads) {
  use_workers(2);
  static std::atomic<int> running{0}, most{0};
  auto compute = [](void*) -> void* {
    Busy busy;  // the fiber is not preempted, so two that run at once have two workers
    int now = ++running;
    for (int m = most.load(); now > m && !most.compare_exchange_weak(m, now);) {
    }
    for (uint64_t end = now_ns() + 5'000'000; now_ns() < end;) {  // too short for sysmon to add a slot
    }
    running--;
    return nullptr;
  };
  // The kernel may be late with the second worker, but not for ever.
  while (most < 2) {
    Handle t[8];
    for (auto& x : t) x = spawn(compute);
    for (auto& x : t) join(x);
  }
}

Test(scheduler, a_record_is_recycled_only_when_its_fiber_is_gone) {
  use_workers(16);
  static std::atomic<int> ran{0};
  auto run = [](void* p) -> void* {
    ran++;
    give_way();
    return p;
  };
  for (int round = 0; round < 500; round++) {
    Handle t[20];
    static int args[20];
    for (int i = 0; i < 20; i++) t[i] = spawn(run, &args[i]);
    for (int i = 0; i < 20; i += 2) detach(t[i]);
    for (int i = 1; i < 20; i += 2) {
      void* r = join(t[i]);
      cr_assert(r == &args[i]);
    }
  }
  while (ran.load() < 10000) give_way();
  cr_assert_eq(ran.load(), 10000);
}

// Each fiber finds in its record what it would find in a new one, and leaves other values there.
Test(scheduler, a_fiber_inherits_nothing_of_the_fiber_that_had_its_record) {
  static std::atomic<int> again{0};
  static FiberRecord* last = nullptr;
  for (int i = 0; i < 100; i++)
    join(spawn([](void*) -> void* {
      FiberRecord* me = self();
      if (me == last) again++;
      last = me;
      cr_assert(me->turns.blocked == 0 && me->turns.woke_at == 0 && me->turns.went_on == 0);
      cr_assert(me->wait.pins == 0 && me->wait.pins_below == 0 && me->wait.clock_seen == 0 && !me->wait.calling);
      cr_assert(me->cpu.told.load() == 0 && me->ends.reasons == 0 && !me->ends.asked && !me->ends.held);
      cr_assert_eq(me->run.interrupts.load(), 0u);
      me->turns.blocked = 3;
      me->turns.went_on = 1;
      me->wait.clock_seen = 1;
      me->cpu.told = 1;
      hold_end(me, true);
      add_end_reason(me);
      me->run.interrupts.fetch_or(kInterruptEnd);  // a held reason does not set it
#ifdef ALONE
      for (unsigned char& b : me->embedder.room) {
        cr_assert_eq(b, 0);
        b = 1;
      }
#endif
      return nullptr;
    }));
  cr_assert(again > 0);
}

// A woken fiber goes to the waker's own worker, until that waker has run on for long after two wake-ups in a row. Then an idle worker is
// told, if there is one, until the waker has soon waited again. The test counts where the fiber went in either state. A fiber may have gone
// elsewhere because another worker came or went just then.
Test(scheduler, a_waker_that_goes_on_has_another_worker_woken, .timeout = 120) {
  chaos_seed = 0;
  run_on(2);
  static std::atomic<uint32_t> rounds{0}, ran{0};
  static std::atomic<FiberRecord*> woken{nullptr};
  static int elsewhere[2], told[2];  // index: whether the waker runs on
  Threads t;
  t.fiber([] {
    woken = self();
    for (uint32_t seen = 0; seen != ~0u; ran = seen) {
      while (rounds == seen) park_if(&rounds, seen, {"test"});
      seen = rounds;
    }
  });
  t.fiber([] {
    FiberRecord* me = self();
    while (!woken) give_way();
    auto wake_up = [&] {
      while (woken.load()->run.state != State::Parked) nap(100);
      Busy busy;
      Slot* s = me->run.worker->run.slot;
      bool tells = s && !s->next && any_free_slot(), on = me->turns.went_on == 2;
      if (!on && wake_pays != WakePays::No) tells = false;  // sysmon has asked for a try, which it does for most rounds on a busy machine
      rounds++;
      unpark(woken);
      if (!tells) return;
      told[on]++;
      elsewhere[on] += s->next != woken.load();
    };
    while (told[1] < 20) {
      wake_up();
      for (uint64_t end = now_ns() + 50'000; now_ns() < end || ran != rounds;) {
      }
      nap(100);
    }
    for (int i = 0; i < 20000 && (me->turns.went_on || told[0] < 20); i++) {
      wake_up();
      nap(100);
    }
    rounds = ~0u;
    unpark(woken);
  });
  t.join();
  cr_assert(told[0] < 20 || elsewhere[0] < told[0] / 2, "%d of %d", elsewhere[0], told[0]);
  cr_assert_gt(elsewhere[1], told[1] / 2, "%d of %d", elsewhere[1], told[1]);
}

// A worker searches ever shorter while the next work is far away. Once some work was near, it searches for the whole time again. Here
// another thread wakes the fiber as soon as it waits.
Test(scheduler, a_search_that_does_not_pay_is_halved, .timeout = 120) {
  chaos_seed = 0;
  run_on(1, 0);
  static std::atomic<FiberRecord*> near{nullptr};
  static std::atomic<bool> over{false};
  static std::atomic<uint32_t> never{0};
  Threads t;
  t.fiber([] {
    Worker *w = nullptr, *last = nullptr;
    uint32_t us = kSpinUs, last_us;
    auto look = [&] {
      Busy busy;
      last = w;
      last_us = us;
      w = self()->run.worker;
      us = w->look.spin_us;
      return us;
    };
    while (look()) nap(1000);
    while (look() != kSpinUs || w != last || last_us == kSpinUs) {
      near = us == kSpinUs ? nullptr : self();  // on another worker, of which nothing is known
      near ? (void)park_if(&never, 0, {"test"}) : (void)nap(1000);
    }
    over = true;
  });
  t.kernel([] {
    (void)self();
    while (!over) {
      FiberRecord* f = near;
      if (!f) nap(100);
      else if (f->run.state == State::Parked) unpark(f);
    }
  });
}

namespace {

// Puts a crowd of fibers into a queue by `put`, while others give way to one another all the time, so that the local queue is never empty.
// Returns how often these others ran until all of the crowd had run.
uint32_t turns_until_all_ran(void (*put)(FiberRecord*)) {
  constexpr uint32_t kOthers = 20, kCrowd = 100;
  chaos_seed = 0;
  run_on(1, 0);
  std::atomic<uint32_t> never{0}, ran{0}, turns{0}, before{0}, after{0};
  std::atomic<FiberRecord*> crowd[kCrowd]{};
  Threads t;
  for (auto& me : crowd)
    t.fiber([&] {
      me = self();
      (void)park_if(&never, 0, {"test"});
      if (++ran == kCrowd) after = turns.load();
    });
  for (uint32_t i = 0; i < kOthers; i++)
    t.fiber([&] {
      for (; ran < kCrowd; turns++) give_way();
    });
  t.fiber([&] {
    for (auto& f : crowd)
      while (!f || f.load()->run.state != State::Parked) give_way();
    Busy busy;
    before = turns.load();
    for (auto& f : crowd) {
      State parked = State::Parked;
      cr_assert(f.load()->run.state.compare_exchange_strong(parked, State::Queued));
      put(f);
    }
  });
  t.join();
  return after - before;
}

constexpr uint32_t kFewTurns = 1200;  // ten times as many as there are fibers

}  // namespace

Test(scheduler, the_global_queue_does_not_wait_for_an_empty_local_one, .timeout = 120) {
  cr_assert_lt(turns_until_all_ran([](FiberRecord* f) { global_queue.push(f); }), kFewTurns);
}

Test(scheduler, the_inbox_does_not_wait_for_an_empty_local_queue, .timeout = 120) {
  cr_assert_lt(turns_until_all_ran([](FiberRecord* f) { self()->run.worker->run.slot->inbox.push(f); }), kFewTurns);
}

namespace {

// While it lives, no memory can be mapped. So no worker can be made, as long as none has ended.
class NoMemory {
 public:
  NoMemory() {
    cr_assert_eq(getrlimit(RLIMIT_AS, &before_), 0);
    rlimit none = before_;
    none.rlim_cur = 0;
    cr_assert_eq(setrlimit(RLIMIT_AS, &none), 0);
  }
  ~NoMemory() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_;
};

}  // namespace

// A fiber that costs its worker the slot again and again is bound there. If that were the last worker, no other could run fibers.
Test(scheduler, the_last_worker_is_bound_to_no_fiber, .timeout = 60) {
  run_on(1, 0);
  static std::atomic<uint32_t> go{0}, over{0};
  Threads t;
  t.fiber([] {
    while (!go.load()) nap(1000);
    while (!over.load()) give_way();
    nap(1000);
    over = 2;
  });
  NoMemory none;
  go = 1;
  nap(5000);
  for (int i = 0; i < 20; i++) {
    {
      Blocking b;
    }
    give_way();
  }
  over = 1;
  while (over.load() != 2) nap(1000);
}

// A fiber sleeps in the kernel, unknown to the scheduler, until another has run. There is no memory for a worker to run that one.
Test(scheduler, sleepers_give_way_if_no_worker_can_be_made, .timeout = 60) {
  run_on(1, 0);
  static std::atomic<uint32_t> go{0};
  static int pipe_ends[2];
  cr_assert_eq(pipe(pipe_ends), 0);
  Threads t;
  t.fiber([] {
    while (!go.load()) nap(1000);
    char c = 0;
    cr_assert_eq(raw_syscall(SYS_read, pipe_ends[0], arg(&c), 1), 1);
    cr_assert_eq(c, 'x');
  });
  t.fiber([] {
    while (!go.load()) nap(1000);
    nap(20'000);
    cr_assert_eq(raw_syscall(SYS_write, pipe_ends[1], arg("x"), 1), 1);
  });
  NoMemory none;
  go = 1;
  t.join();
}
