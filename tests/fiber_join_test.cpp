// SPDX-License-Identifier: MIT
// Joining fibers (fiberthread.h, fiber.h): each sentence of the contract.
// tests/programs/quick/fiber_api.sh runs this with one and many workers, under FIBERTHREAD_CHAOS and on NPTL as well.
#include "fiberthread/fiber.h"

#include "tests/test.h"

#include <errno.h>
#include <gnu/libc-version.h>
#include <signal.h>
#include <unistd.h>

#include "tests/fiber_api.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(fiber_join, join_is_once) {
  Fiber f = Fiber::spawn([] {});
  FiberRef r = f;
  cr_assert_eq(f.join(), 0);
  cr_assert_eq(fiberthread_join(r.handle(), nullptr), ESRCH);
  cr_assert_eq(fiberthread_join_timeout(r.handle(), nullptr, 0), ESRCH);
  cr_assert_eq(f.join(), ESRCH);
  cr_assert_eq(fiberthread_join(nullptr, nullptr), ESRCH);
}

Test(fiber_join, invalid_joins_fail) {
  cr_assert_eq(fiberthread_join(fiberthread_self(), nullptr), EDEADLK);
  std::atomic<bool> go{false};
  Fiber f = Fiber::spawn(FiberOptions{0, nullptr, false, false}, [&] {
    while (!go) Fiber::sleep(kMs);
  });
  cr_assert_eq(fiberthread_join(f.handle(), nullptr), EINVAL);
  go = true;
  std::atomic<fiberthread_t> foreign{nullptr};
  std::atomic<bool> leave{false};
  Threads t;
  t.kernel([&] {
    foreign = fiberthread_self();
    while (!leave) usleep(1000);
  });
  until([&] { return foreign != nullptr; });
  cr_assert_eq(fiberthread_join(foreign, nullptr), EINVAL);
  cr_assert_eq(fiberthread_set_joinable(foreign, 1), EINVAL);
  cr_assert_eq(fiberthread_set_joinable(fiberthread_self(), 0), EINVAL);
  leave = true;
  // Two fibers join the same one.
  std::atomic<int> seconds{0};
  Fiber last = Fiber::spawn([] { Fiber::yield(); });
  FiberRef r = last;
  Threads two;
  for (int i = 0; i < 2; i++) two.fiber([&] { seconds += fiberthread_join(r.handle(), nullptr) == EINVAL; });
  until([&] { return seconds == 1; });
  cr_assert_eq(r.set_joinable(false), EBUSY);
  last.wakeup();
  two.join();
  cr_assert_eq(last.join(), ESRCH);
  new (&last) Fiber;
}

// Two fibers join each other. However close together their calls come, only one is told. The other one's join returns when that one has
// ended.
Test(fiber_join, two_that_join_each_other) {
  if (on_nptl()) return;  // libc may not notice the deadlock
  static std::atomic<int> there, deadlocks, over;
  static fiberthread_t fibers[2];
  static pthread_t threads[2];
  static bool by_pthread;
  for (int round = 0; round < 4000; round++) {
    there = deadlocks = over = 0;
    by_pthread = round % 2;
    auto body = [](void* other) -> void* {
      there++;
      for (int i = 0; there < 2; i++) i < 1000 ? cpu_relax() : Fiber::reschedule();
      auto i = reinterpret_cast<size_t>(other);
      int e = by_pthread ? pthread_join(threads[i], nullptr) : fiberthread_join(fibers[i], nullptr);
      cr_assert(e == 0 || e == EDEADLK, "%d", e);
      deadlocks += e == EDEADLK;
      over++;
      return nullptr;
    };
    for (int i = 0; i < 2; i++) {
      fiberthread_new(&fibers[i], nullptr, body);
      fiberthread_pthread(fibers[i], &threads[i]);
    }
    for (size_t i = 0; i < 2; i++) fiberthread_start(fibers[i], reinterpret_cast<void*>(1 - i));
    until([] { return over == 2; });
    cr_assert_eq(deadlocks, 1);
    int joins = 0;
    for (fiberthread_t f : fibers) joins += fiberthread_join(f, nullptr) == 0;
    cr_assert_eq(joins, 1);
  }
}

Test(fiber_join, a_join_that_timed_out_may_come_again) {
  Fiber f = Fiber::spawn([] { Fiber::yield(); });
  for (int i = 0; i < 20; i++) cr_assert_eq(f.join_timeout(100'000), ETIMEDOUT);
  f.wakeup();
  cr_assert_eq(f.join_timeout(kLong), 0);
}

Test(fiber_join, joinable_or_not) {
  // Before it starts, while it runs, after it has ended, and back again.
  Fiber a = Fiber::create([] {});
  cr_assert_eq(a.set_joinable(false), 0);
  cr_assert_eq(a.set_joinable(true), 0);
  a.start();
  cr_assert_eq(a.join(), 0);
  Fiber b = Fiber::spawn([] { Fiber::yield(); });
  cr_assert_eq(b.set_joinable(false), 0);
  cr_assert_eq(b.set_joinable(false), 0);
  cr_assert_eq(b.set_joinable(true), 0);
  b.wakeup();
  cr_assert_eq(b.join(), 0);
  Fiber c = Fiber::spawn([] {});
  until([&] { return record(c)->join.done.load() != 0; });
  FiberRef r = c;
  cr_assert_eq(c.detach(), 0);
  cr_assert_eq(r.set_joinable(true), ESRCH);
  cr_assert_eq(r.wakeup(), ESRCH);
  Fiber d = Fiber::spawn(FiberOptions{0, nullptr, false, false}, [] { Fiber::yield(); });
  r = d;
  d.wakeup();
  until([&] { return r.wakeup() == ESRCH; });
}

Test(fiber_join, pthread_join_and_detach_on_its_handle) {
  for (int i = 0; i < 100; i++) {
    fiberthread_t f;
    pthread_t t;
    void* r;
    // The fiber must not end before its handle is asked for, since the handle is only valid until then.
    cr_assert_eq(fiberthread_new(&f, nullptr, add_one), 0);
    cr_assert_eq(fiberthread_pthread(f, &t), 0);
    cr_assert_eq(fiberthread_start(f, place), 0);
    cr_assert_eq(pthread_join(t, &r), 0);
    cr_assert_eq(r, place + 1);
    if (!on_nptl()) cr_assert_eq(fiberthread_join(f, nullptr), ESRCH);
  }
}

Test(fiber_join, a_thread_of_pthread_create_can_be_joined) {
  if (on_nptl()) return;  // libc's threads are foreign there
  for (int i = 0; i < 100; i++) {
    pthread_t t;
    void* r;
    pthread_create(&t, nullptr, add_one, place);
    fiberthread_t f = fiberthread_of(t);
    cr_assert_not_null(f);
    cr_assert_eq(fiberthread_join(f, &r), 0);
    cr_assert_eq(r, place + 1);
    // A second join gives what it gives with this libc. Since 2.43, libc treats it like the first one.
    cr_assert_eq(pthread_join(t, nullptr), strverscmp(gnu_get_libc_version(), "2.43") >= 0 ? 0 : ESRCH);
    cr_assert_null(fiberthread_of(t));
  }
}

Test(fiber_join, pthread_exit_and_pthread_cancel_end_it) {
  fiberthread_t f;
  void* r;
  fiberthread_spawn(&f, nullptr, [](void* p) -> void* { pthread_exit(static_cast<char*>(p) + 2); }, place);
  cr_assert_eq(fiberthread_join(f, &r), 0);
  cr_assert_eq(r, place + 2);
  fiberthread_spawn(
      &f, nullptr,
      [](void*) -> void* {
        for (;;) usleep(1'000'000);
      },
      nullptr);
  pthread_t t;
  cr_assert_eq(fiberthread_pthread(f, &t), 0);
  cr_assert_eq(pthread_cancel(t), 0);
  cr_assert_eq(fiberthread_join(f, &r), 0);
  cr_assert_eq(r, PTHREAD_CANCELED);
}

Test(fiber_join, destroying_a_joinable_one_aborts, .signal = SIGABRT) {
  Fiber f = Fiber::spawn([] {});
}

}  // namespace
