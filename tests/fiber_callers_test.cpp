// SPDX-License-Identifier: MIT
// The threads that may call the fiber API: main before any fiber, foreign threads, the child of a fork. And all calls at once.
// tests/programs/quick/fiber_api.sh runs this with one and many workers, under FIBERTHREAD_CHAOS and on NPTL as well.
#include "fiberthread/fiber.h"

#include "tests/test.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sched/worker.h"
#include "tests/fiber_api.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(fiber_callers, from_main_before_any_fiber) {
  cr_assert_not_null(fiberthread_self());
  cr_assert_eq(fiberthread_id(fiberthread_self()), static_cast<uint64_t>(getpid()));
  cr_assert_not(Fiber::cancelled());
  cr_assert_eq(Fiber::self().wakeup(), 0);
  cr_assert_eq(Fiber::yield_timeout(kMs), ETIMEDOUT);
  cr_assert_eq(Fiber::sleep(kMs), 0);
  Fiber::reschedule();
  cr_assert(Fiber::find(Fiber::self().id()) == Fiber::self());
  cr_assert_eq(fiberthread_of(pthread_self()), fiberthread_self());
  cr_assert_eq(fiberthread_join(fiberthread_self(), nullptr), EDEADLK);
  cr_assert_eq(Fiber::self().cancel(), 0);
  cr_assert_eq(Fiber::yield(), ECANCELED);
  Fiber::set_cancellable(false);
  FiberRef before = Fiber::self();
  Fiber::spawn([] {}).join_timeout(kLong);
  cr_assert(before == Fiber::self());
}

Test(fiber_callers, foreign_threads_use_all_of_it) {
  Threads t;
  for (int n = 0; n < 3; n++)
    t.kernel([] {
      for (int i = 0; i < 100; i++) {
        Fiber f = Fiber::spawn([] { cr_assert_eq(Fiber::yield(), 0); });
        f.wakeup();
        cr_assert_eq(f.join(), 0);
        f = Fiber::spawn([] { cr_assert_eq(Fiber::yield(), ECANCELED); });
        f.cancel();
        cr_assert_eq(f.join_timeout(kLong), 0);
        FiberRef me = Fiber::self();
        Fiber waker = Fiber::spawn([me] { me.wakeup(); });
        cr_assert_eq(Fiber::yield(), 0);
        waker.join();
        Fiber fresh = Fiber::create([] {});
        fiberthread_sleep(1000);
      }
    });
}

#if defined(__x86_64__)  // the emulator cannot fork with threads
// The child has the fiber that forked, and not that fiber's caller.
Test(fiber_callers, a_called_fiber_forks) {
  static bool in_child = false;
  Fiber f = Fiber::create([] {
    pid_t pid = fork();
    if (pid == 0) {
      in_child = true;
      Fiber::spawn([] {}).join();
      Fiber::sleep(50 * kMs);
      _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    cr_assert_eq(status, 0);
  });
  cr_assert_eq(f.call(), 0);
  if (in_child) _exit(3);
  cr_assert_eq(f.join(), 0);
}

Test(fiber_callers, in_the_child_of_a_fork) {
  std::atomic<bool> go{false};
  Fiber other = Fiber::spawn([&] {
    while (!go) Fiber::sleep(kMs);
  });
  Fiber fresh = Fiber::create([] {});
  std::atomic<fiberthread_t> foreign{nullptr};
  Threads t;
  t.kernel([&] {
    foreign = fiberthread_self();
    while (!go) usleep(1000);
  });
  until([&] { return foreign != nullptr; });
  Fiber forker = Fiber::spawn([&] {
    FiberRef me = Fiber::self();
    pid_t pid = fork();
    if (pid == 0) {
      bool ok = me == Fiber::self() && me.id() == static_cast<uint64_t>(getpid());
      ok = ok && other.cancel() == ESRCH && other.wakeup() == ESRCH && fiberthread_join(other.handle(), nullptr) == ESRCH;
      ok = ok && fiberthread_start(fresh.handle(), nullptr) == ESRCH && fiberthread_cancel(foreign) == ESRCH;
      int n = 0;
      Fiber::each([&](FiberRef f) {
        n++;
        ok = ok && f == me;
        return true;
      });
      ok = ok && n == 1;
      ok = ok && Fiber::yield_timeout(kMs) == ETIMEDOUT;
      std::atomic<int> ran{0};
      for (int i = 0; i < 50; i++)
        Fiber::spawn([&] {
          ran++;
          Fiber::yield_timeout(1000);
        }).join();
      Fiber called = Fiber::create([&] {
        ran++;
        Fiber::yield();
      });
      ok = ok && called.call() == 0 && ran == 51;
      called.cancel();
      ok = ok && called.join() == 0;
      _exit(ok ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%x", status);
  });
  forker.join();
  go = true;
  other.join();
}
#endif

// Wakers, cancellers, and joiners with and without a time limit work on fibers that come and go. Half of them are foreign threads. Each
// fiber that was made ends, is joined once, and has counted what it was woken for.
Test(fiber_callers, stress) {
  constexpr size_t kUsers = 6, kPlaces = 16;
  struct Place {
    std::atomic<fiberthread_t> fiber{nullptr};
  };
  static Place places[kPlaces];
  std::atomic<uint64_t> made{0}, begun{0}, ended{0}, joined{0};
  uint64_t end = now_ns() + 300 * kMs;
  {
    Threads t;
    for (size_t u = 0; u < kUsers; u++) {
      auto user = [&, u] {
        Random random{u * 77 + 1};
        while (now_ns() < end || made <= 5) {  // at least a few on a slow machine
          Place& p = places[random(kPlaces)];
          switch (random(8)) {
            case 0:
            case 1: {  // puts another fiber there, and cancels and joins the old one
              auto body = [&, kind = random(4)] {
                begun++;
                for (int i = 0; i < 50 && !Fiber::cancelled(); i++) {
                  if (kind == 0) Fiber::yield_timeout(200'000);
                  else if (kind == 1) Fiber::sleep(50'000);
                  else if (kind == 2) Fiber::reschedule();
                  else Fiber::yield();
                }
                ended++;
              };
              bool call = random(3) == 0;
              Fiber f = call ? Fiber::create(body) : Fiber::spawn(body);
              if (!f) break;
              made++;
              FiberRef r = f;
              if (call) f.call();
              fiberthread_t old = p.fiber.exchange(r.handle());
              new (&f) Fiber;  // the thread that takes the fiber out joins it
              if (!old) break;
              fiberthread_cancel(old);
              int e = random(2) ? fiberthread_join(old, nullptr) : ETIMEDOUT;
              while (e == ETIMEDOUT) e = fiberthread_join_timeout(old, nullptr, random(1000) * 1000);
              cr_assert_eq(e, 0, "%d", e);
              joined++;
              break;
            }
            case 2: fiberthread_cancel(p.fiber); break;
            case 3: Fiber::yield_timeout(random(100'000)); break;
            case 4: fiberthread_set_name(p.fiber, "busy"); break;
            default: fiberthread_wakeup(p.fiber);
          }
        }
      };
      if (u % 2) t.kernel(user);
      else t.fiber(user);
    }
  }
  for (Place& p : places)
    if (fiberthread_t last = p.fiber.exchange(nullptr)) {
      fiberthread_cancel(last);
      cr_assert_eq(fiberthread_join(last, nullptr), 0);
      joined++;
    }
  cr_assert_gt(made, 5u);
  cr_assert_eq(joined, made);
  cr_assert_eq(begun, made);
  cr_assert_eq(ended, made);
}

}  // namespace
