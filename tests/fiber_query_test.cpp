// SPDX-License-Identifier: MIT
// Handles, ids, names and whatever else belongs to one fiber (fiberthread.h, fiber.h): each sentence of the contract.
// tests/programs/quick/fiber_api.sh runs this with one and many workers, under FIBERTHREAD_CHAOS and on NPTL as well.
#include "fiberthread/fiber.h"

#include "tests/test.h"

#include <errno.h>
#include <unistd.h>

#include <vector>

#include "sched/chaos.h"
#include "sched/worker.h"
#include "tests/single_steps.h"
#include "tests/fiber_api.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(fiber_query, ids_names_and_look_up) {
  std::atomic<bool> go{false};
  uint64_t inside = 0;
  Fiber f = Fiber::spawn(FiberOptions{0, "first", false, true}, [&] {
    inside = static_cast<uint64_t>(gettid());
    while (!go) Fiber::sleep(100'000);
  });
  until([&] { return f.id() != 0; });
  FiberRef r = f;
  cr_assert(Fiber::find(f.id()) == f);
  cr_assert(Fiber::find(Fiber::self().id()) == Fiber::self());
  cr_assert_neq(f.id(), Fiber::self().id());
  char name[16];
  cr_assert_eq(f.name(name, sizeof name), 0);
  cr_assert_str_eq(name, "first");
  cr_assert_eq(f.name(name, 5), ERANGE);
  cr_assert_eq(f.name(name, 6), 0);
  cr_assert_eq(f.set_name("0123456789abcdef"), ERANGE);
  cr_assert_eq(f.set_name("second"), 0);
  cr_assert_eq(f.name(name, sizeof name), 0);
  cr_assert_str_eq(name, "second");
  pthread_t t;
  cr_assert_eq(fiberthread_pthread(f.handle(), &t), 0);
  cr_assert_eq(pthread_getname_np(t, name, sizeof name), 0);
  cr_assert_str_eq(name, "second");
  cr_assert_eq(fiberthread_of(t), f.handle());
  uint64_t id = f.id();
  go = true;
  f.join();
  cr_assert_eq(inside, id);
  cr_assert_not(Fiber::find(id));
  cr_assert_not(Fiber::find(0));
  cr_assert_not(Fiber::find(~uint64_t{0}));
  cr_assert_eq(r.id(), 0u);
  cr_assert_eq(r.name(name, sizeof name), ESRCH);
  cr_assert_eq(r.set_name("x"), ESRCH);
  cr_assert_eq(fiberthread_pthread(r.handle(), &t), ESRCH);
}

Test(fiber_query, the_maker_gives_its_name) {
  Fiber::self().set_name("maker");
  char name[16] = "";
  Fiber::spawn([&] { Fiber::self().name(name, sizeof name); }).join();
  cr_assert_str_eq(name, "maker");
  cr_assert_eq(Fiber::self().name(name, sizeof name), 0);
  cr_assert_str_eq(name, "maker");
}

Test(fiber_query, all_are_visited) {
  constexpr size_t kFibers = 300;
  std::atomic<bool> go{false};
  std::vector<Fiber> fibers;
  for (size_t i = 0; i < kFibers; i++)
    fibers.push_back(Fiber::spawn([&] {
      while (!go) Fiber::sleep(kMs);
    }));
  Fiber fresh = Fiber::create([] {});
  Fiber ended = Fiber::spawn([] {});
  until([&] { return record(ended)->join.done.load() != 0; });
  size_t seen = 0, known = 0;
  bool main = false;
  Fiber::each([&](FiberRef f) {
    seen++;
    main |= f == Fiber::self();
    cr_assert(f != fresh && f != ended);
    for (Fiber& g : fibers) known += g == f;
    return true;
  });
  cr_assert(main);
  cr_assert_eq(known, kFibers);
  cr_assert_geq(seen, kFibers + 1);
  size_t visits = 0;
  Fiber::each([&](FiberRef) { return ++visits < 5; });
  cr_assert_eq(visits, 5u);
  cr_assert_eq(fiberthread_each([](fiberthread_t, void*) { return 7; }, nullptr), 7);
  // The visitor may wait, and may make and end fibers.
  visits = 0;
  Fiber::each([&](FiberRef) {
    Fiber::spawn([] {}).join();
    return ++visits < 20;
  });
  go = true;
  for (Fiber& f : fibers) f.join();
  ended.join();
}

// A handle names one fiber for ever, though there are only a few records.
Test(fiber_query, stale_handles) {
  std::vector<FiberRef> gone;
  for (int i = 0; i < 2000; i++) {
    Fiber f = Fiber::spawn([] {
      cr_assert_not(Fiber::cancelled());
      cr_assert_eq(Fiber::yield_timeout(0), ETIMEDOUT);
    });
    gone.push_back(f);
    for (size_t k = gone.size() > 5 ? gone.size() - 5 : 0; k + 1 < gone.size(); k++) {
      cr_assert_eq(gone[k].cancel(), ESRCH);
      cr_assert_eq(gone[k].wakeup(), ESRCH);
      cr_assert_eq(gone[k].set_joinable(false), ESRCH);
    }
    cr_assert_eq(f.join(), 0);
  }
  for (size_t i = 0; i < gone.size(); i++)
    for (size_t k = 0; k < i; k++) cr_assert(gone[i] != gone[k]);
}

Test(fiber_query, recycling_shows_in_the_statistics) {
  if (on_nptl()) return;
  fiberthread_statistics_t before, s;
  fiberthread_get_statistics(&before);
  for (int i = 0; i < 500; i++) Fiber::spawn([] {}).join();
  fiberthread_get_statistics(&s);
  cr_assert_eq(s.spawned, before.spawned + 500u);
  cr_assert_eq(s.ended, before.ended + 500u);
  cr_assert_geq(s.recycled, before.recycled + 400u);
  cr_assert_leq(s.recycled, before.recycled + 499u);
  cr_assert_geq(s.workers, 1u);
}

Test(fiber_query, keys) {
  static std::atomic<int> destroyed{0};
  fiberthread_key_t key;
  cr_assert_eq(fiberthread_key_create(&key, [](void* p) { destroyed += *static_cast<int*>(p); }), 0);
  int one = 1, hundred = 100;
  cr_assert_null(fiberthread_get_local(key));
  cr_assert_eq(fiberthread_set_local(key, &hundred), 0);
  std::vector<Fiber> fibers;
  for (int i = 0; i < 20; i++)
    fibers.push_back(Fiber::spawn([&] {
      cr_assert_null(fiberthread_get_local(key));
      cr_assert_eq(fiberthread_set_local(key, &one), 0);
      Fiber::reschedule();
      cr_assert_eq(fiberthread_get_local(key), &one);
    }));
  for (Fiber& f : fibers) f.join();
  cr_assert_eq(destroyed, 20);  // the values are destroyed before the join returns
  cr_assert_eq(fiberthread_get_local(key), &hundred);
  cr_assert_eq(fiberthread_key_delete(key), 0);
  cr_assert_eq(fiberthread_set_local(key, &one), EINVAL);
}

Test(fiber_query, fiber_locals_are_deleted) {
  static std::atomic<int> alive{0};
  struct Counted {
    int value = 5;
    Counted() { alive++; }
    ~Counted() { alive--; }
  };
  {
    FiberLocal<Counted> local;
    cr_assert(local.valid());
    cr_assert_eq(local.reset(new Counted), 0);
    Fiber::spawn([&] {
      cr_assert_null(local.get());
      local.reset(new Counted);
      local->value = 6;
      cr_assert_eq(alive, 2);
    }).join();
    cr_assert_eq(alive, 1);
    cr_assert_eq((*local).value, 5);
  }
  cr_assert_eq(alive, 0);
}

thread_local int of_each = 7;

Test(fiber_query, a_fiber_is_a_thread) {
  std::vector<Fiber> fibers;
  std::vector<pthread_t> selves(50);
  for (size_t i = 0; i < 50; i++)
    fibers.push_back(Fiber::spawn([&, i] {
      selves[i] = pthread_self();
      cr_assert_eq(of_each, 7);
      of_each = static_cast<int>(i);
      errno = static_cast<int>(i);
      for (int k = 0; k < 20; k++) Fiber::reschedule();
      cr_assert_eq(of_each, static_cast<int>(i));
      cr_assert_eq(errno, static_cast<int>(i));
      cr_assert(pthread_equal(pthread_self(), selves[i]));
      pthread_t t;
      cr_assert_eq(fiberthread_pthread(fiberthread_self(), &t), 0);
      cr_assert(pthread_equal(t, pthread_self()));
    }));
  for (Fiber& f : fibers) f.join();
}

Test(fiber_query, errno_is_left_alone) {
  errno = 12345;
  Fiber f = Fiber::spawn([] {});
  f.set_name("x");
  f.wakeup();
  f.cancel();
  Fiber::yield_timeout(1000);
  Fiber::sleep(1000);
  f.join_timeout(kLong);
  f.join();
  Fiber::reschedule();
  cr_assert_eq(errno, 12345);
}

#if defined(__x86_64__)  // the emulator cannot single-step
// A handle is never unknown while other threads start its fiber. A kernel thread looks the handle up, and single steps stop it at each
// instruction until the fiber has begun to run.
Test(fiber_query, a_handle_is_known_while_its_fiber_is_started) {
  if (on_nptl()) cr_skip_test("no records");
  if (chaos_seed) return;  // its delays look like the end of the call
  int step = 0;
  for (bool all = false; !all; step++) {
    Fiber f = Fiber::create([] { Fiber::yield(); });
    fiberthread_t handle = f.handle();
    static int e;
    e = -1;
    Threads t;
    all = !steps::run(t, step, [=] {
      pthread_t thread;
      e = fiberthread_pthread(handle, &thread);
    });
    f.start();
    until_waits(f);
    steps::stage = steps::kGoOn;
    t.join();
    cr_assert_eq(e, 0, "stopped at instruction %d", step);
    f.wakeup();
    cr_assert_eq(f.join(), 0);
  }
  cr_assert(step > 10, "%d times", step);
}
#endif

}  // namespace
