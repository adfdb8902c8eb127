// SPDX-License-Identifier: MIT
// Making, starting and calling fibers (fiberthread.h, fiber.h): each sentence of the contract.
// tests/programs/quick/fiber_api.sh runs this with one and many workers, under FIBERTHREAD_CHAOS and on NPTL as well.
#include "fiberthread/fiber.h"

#include "tests/test.h"

#include <errno.h>
#include <limits.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "sched/worker.h"
#include "tests/fiber_api.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(fiber_start, spawned_it_runs_with_its_argument_and_join_gives_the_result) {
  fiberthread_t f;
  void* result;
  cr_assert_eq(fiberthread_spawn(&f, nullptr, add_one, place), 0);
  cr_assert_eq(fiberthread_join(f, &result), 0);
  cr_assert_eq(result, place + 1);
}

Test(fiber_start, invalid_options_fail) {
  fiberthread_t f = nullptr;
  fiberthread_options_t o{};
  cr_assert_eq(fiberthread_spawn(&f, nullptr, nullptr, nullptr), EINVAL);
  o.stack_size = 4096;
  cr_assert_eq(fiberthread_spawn(&f, &o, pass, nullptr), EINVAL);
  cr_assert_eq(fiberthread_new(&f, &o, pass), EINVAL);
  o = {};
  o.name = "0123456789abcdef";
  cr_assert_eq(fiberthread_spawn(&f, &o, pass, nullptr), ERANGE);
  o = {};
  o.stack_size = SIZE_MAX / 2;
  cr_assert_eq(fiberthread_spawn(&f, &o, pass, nullptr), EAGAIN);
  cr_assert_null(f);
}

Test(fiber_start, stack_size) {
  for (size_t size : {static_cast<size_t>(PTHREAD_STACK_MIN), size_t{200'000}, size_t{1} << 20}) {
    size_t got = 0;
    Fiber f = Fiber::spawn(FiberOptions{size, nullptr, false, true}, [&] {
      pthread_attr_t a;
      pthread_getattr_np(pthread_self(), &a);
      pthread_attr_getstacksize(&a, &got);
      pthread_attr_destroy(&a);
    });
    cr_assert_eq(f.error(), 0);
    f.join();
    cr_assert_geq(got + (on_nptl() ? 65536 : 0), size);  // on NPTL the guard is part of the stack
    cr_assert_lt(got, size + (512 << 10));
  }
}

Test(fiber_start, attributes_say_the_rest) {
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, 1 << 20);
  pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR1);
  pthread_attr_setsigmask_np(&a, &mask);
  fiberthread_options_t o{};
  o.attr = &a;
  o.stack_size = 256 << 10;  // takes precedence over the size in `attr`
  static std::atomic<int> done{0};
  fiberthread_t f;
  auto body = [](void*) -> void* {
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, nullptr, &now);
    pthread_attr_t mine;
    size_t size;
    pthread_getattr_np(pthread_self(), &mine);
    pthread_attr_getstacksize(&mine, &size);
    pthread_attr_destroy(&mine);
    done = (sigismember(&now, SIGUSR1) && !sigismember(&now, SIGUSR2)) + 2 * (size < 512 << 10);
    return nullptr;
  };
  cr_assert_eq(fiberthread_spawn(&f, &o, body, nullptr), 0);
  until([&] { return done != 0; });
  cr_assert_eq(done, 3);
  int e = fiberthread_join(f, nullptr);
  cr_assert(e == EINVAL || e == ESRCH);
  pthread_attr_destroy(&a);
}

Test(fiber_start, bound_by_option_and_by_attribute) {
  if (on_nptl()) return;
  bool bound = false;
  auto look = [&] { bound = fiberthread::self()->run.bound.load() != nullptr; };
  Fiber::spawn(FiberOptions{0, nullptr, true, true}, look).join();
  cr_assert(bound);
  Fiber::spawn(look).join();
  cr_assert_not(bound);
  pthread_attr_t a;
  pthread_attr_init(&a);
  cr_assert_eq(fiberthread_attr_setbound(&a, 1), 0);
  cr_assert_eq(fiberthread_attr_setbound(&a, 2), EINVAL);
  pthread_t t;
  pthread_create(
      &t, &a,
      [](void* p) -> void* {
        (*static_cast<decltype(look)*>(p))();
        return nullptr;
      },
      &look);
  pthread_join(t, nullptr);
  cr_assert(bound);
}

Test(fiber_start, a_new_one_runs_when_it_is_started_and_once) {
  std::atomic<int> runs{0};
  Fiber f = Fiber::create([&] { runs++; });
  fiberthread_sleep(2 * kMs);
  cr_assert_eq(runs, 0);
  FiberRef r = f;
  cr_assert_eq(f.start(), 0);
  cr_assert_eq(f.start(), EALREADY);
  cr_assert_eq(f.call(), EALREADY);
  cr_assert_eq(fiberthread_discard(f.handle()), EALREADY);
  cr_assert_eq(f.join(), 0);
  cr_assert_eq(runs, 1);
  cr_assert_eq(fiberthread_start(r.handle(), nullptr), ESRCH);
}

Test(fiber_start, start_gives_the_argument) {
  fiberthread_t f;
  void* result;
  cr_assert_eq(fiberthread_new(&f, nullptr, add_one), 0);
  cr_assert_eq(fiberthread_start(f, place + 1), 0);
  cr_assert_eq(fiberthread_join(f, &result), 0);
  cr_assert_eq(result, place + 2);
}

Test(fiber_start, a_new_one_can_be_discarded) {
  for (int i = 0; i < 1000; i++) {
    fiberthread_t f;
    cr_assert_eq(fiberthread_new(&f, nullptr, pass), 0);
    cr_assert_eq(fiberthread_discard(f), 0);
    cr_assert_eq(fiberthread_discard(f), ESRCH);
    cr_assert_eq(fiberthread_start(f, nullptr), ESRCH);
  }
  bool destroyed = false;
  struct Mark {
    bool* to;
    explicit Mark(bool* p) : to(p) {}
    Mark(Mark&& o) : to(o.to) { o.to = nullptr; }
    ~Mark() {
      if (to) *to = true;
    }
  };
  {
    Fiber f = Fiber::create([m = Mark(&destroyed)] { (void)m; });
  }
  cr_assert(destroyed);
}

// Only one of many threads starts the fiber.
Test(fiber_start, starts_race) {
  for (int round = 0; round < 50; round++) {
    static std::atomic<int> runs;
    std::atomic<int> started{0};
    runs = 0;
    fiberthread_t f;
    cr_assert_eq(fiberthread_new(&f, nullptr,
                                 [](void* p) -> void* {
                                   runs++;
                                   return p;
                                 }),
                 0);
    {
      Threads t;
      for (int i = 0; i < 4; i++) {
        auto body = [&, i] {
          int e = i == 3 ? fiberthread_call(f, nullptr) : fiberthread_start(f, nullptr);
          started += e == 0;
          cr_assert(e == 0 || e == EALREADY, "%d", e);
        };
        if (i % 2) t.kernel(body);
        else t.fiber(body);
      }
    }
    cr_assert_eq(started, 1);
    cr_assert_eq(fiberthread_join(f, nullptr), 0);
    cr_assert_eq(runs, 1);
  }
}

Test(fiber_start, called_it_runs_at_once_until_it_yields) {
  std::vector<int> order;
  Fiber f = Fiber::create([&] {
    order.push_back(2);
    Fiber::yield();
    order.push_back(4);
  });
  order.push_back(1);
  cr_assert_eq(f.call(), 0);
  order.push_back(3);
  cr_assert_eq(order.size(), 3u);
  cr_assert_eq(f.wakeup(), 0);
  cr_assert_eq(f.join(), 0);
  cr_assert(order == (std::vector<int>{1, 2, 3, 4}));
}

Test(fiber_start, called_it_runs_before_those_that_are_ready) {
  if (!one_in_order()) return;
  std::vector<int> order = order_of([](auto& ran) {
    Fiber a = Fiber::spawn([&] { ran(10); });
    Fiber b = Fiber::spawn([&] { ran(11); });
    Fiber f = Fiber::create([&] { ran(1); });
    cr_assert_eq(f.call(), 0);
    ran(2);
    a.join();
    b.join();
    f.join();
  });
  cr_assert(order[0] == 1 && order[1] == 2);
}

// The caller goes on when the callee first waits, in whatever call, and not when the callee is preempted.
Test(fiber_start, the_caller_goes_on_when_it_first_waits_or_ends) {
  Threads others;
  for (int i = 0; i < 3; i++)
    others.fiber([] {
      uint64_t end = now_ns() + 50 * kMs;
      while (now_ns() < end) {
      }
    });
  for (int how = 0; how < (on_nptl() ? 5 : 7); how++) {  // on NPTL, waits in libc are not seen
    std::atomic<int> at{0};
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    sem_t sem;
    sem_init(&sem, 0, 0);
    pthread_mutex_lock(&m);
    Fiber f = Fiber::create([&] {
      at = 1;
      uint64_t end = now_ns() + 10 * kMs;  // the fiber is preempted meanwhile
      while (now_ns() < end) {
      }
      at = 2;
      char c;
      switch (how) {
        case 0: return;
        case 1: Fiber::yield(); break;
        case 2: Fiber::reschedule(); break;
        case 3: Fiber::sleep(kMs); break;
        case 4:
          pthread_mutex_lock(&m);
          pthread_mutex_unlock(&m);
          break;
        case 5: sem_wait(&sem); break;
        case 6: cr_assert_eq(read(ends[0], &c, 1), 1); break;
      }
      at = 3;
    });
    cr_assert_eq(f.call(), 0);
    cr_assert_geq(at, 2, "%d", how);
    if (how == 1) f.wakeup();
    pthread_mutex_unlock(&m);
    sem_post(&sem);
    cr_assert_eq(write(ends[1], "x", 1), 1);
    cr_assert_eq(f.join(), 0);
    close(ends[0]);
    close(ends[1]);
  }
}

Test(fiber_start, a_wake_up_that_came_before_does_not_keep_the_caller_waiting) {
  std::atomic<bool> ended{false};
  Fiber f = Fiber::create([&] {
    FiberRef me = Fiber::self();
    Fiber::spawn([me] { me.wakeup(); }).join();  // this join is its first wait
    Fiber::yield();
    ended = true;
  });
  cr_assert_eq(f.call(), 0);
  cr_assert_eq(f.join(), 0);
  cr_assert(ended);
}

Test(fiber_start, calls_nest) {
  std::vector<int> order;
  Fiber inner = Fiber::create([&] {
    order.push_back(2);
    Fiber::yield();
    order.push_back(6);
  });
  Fiber outer = Fiber::create([&] {
    order.push_back(1);
    cr_assert_eq(inner.call(), 0);
    order.push_back(3);  // the yield of `inner` has ended only the inner call
    Fiber::yield();
    order.push_back(5);
    inner.wakeup();
    inner.join();
  });
  cr_assert_eq(outer.call(), 0);
  order.push_back(4);
  outer.wakeup();
  outer.join();
  cr_assert(order == (std::vector<int>{1, 2, 3, 4, 5, 6}));
}

Test(fiber_start, calls_from_foreign_threads_and_bound_fibers_and_of_bound_ones) {
  auto calls = [](bool bound) {
    for (int i = 0; i < 200; i++) {
      std::atomic<int> at{0};
      Fiber f = Fiber::create(FiberOptions{0, nullptr, bound, true}, [&] {
        at = 1;
        Fiber::yield();
        at = 2;
      });
      cr_assert_eq(f.error(), 0);
      cr_assert_eq(f.call(), 0);
      cr_assert_eq(at, 1);
      f.wakeup();
      cr_assert_eq(f.join(), 0);
      cr_assert_eq(at, 2);
    }
  };
  Threads t;
  t.kernel([&] { calls(false); });
  t.fiber([&] { calls(false); });
  Fiber b = Fiber::spawn(FiberOptions{0, nullptr, true, true}, [&] { calls(false); });
  calls(true);
  b.join();
}

Test(fiber_start, a_cancelled_caller_does_not_wait_for_the_callee) {
  std::atomic<bool> go{false}, running{false};
  Fiber callee = Fiber::create([&] {
    running = true;
    while (!go) {
    }
  });
  Fiber caller = Fiber::spawn([&] { cr_assert_eq(callee.call(), ECANCELED); });
  while (!running) {
  }
  // The callee only computes, so this needs another worker, or preemption.
  caller.cancel();
  cr_assert_eq(caller.join(), 0);
  go = true;
  cr_assert_eq(callee.join(), 0);
}

Test(fiber_start, callables_of_all_kinds) {
  struct Object {
    int base;
    void* add(int n) { return place + base + n; }
  } object{1};
  void* r;
  Fiber f = Fiber::spawn(&Object::add, &object, 1);
  f.join(&r);
  cr_assert_eq(r, place + 2);
  auto owned = std::make_unique<int>(7);
  int got = 0;
  std::string text;
  Fiber g = Fiber::spawn(
      [&got, &text](std::unique_ptr<int> p, const std::string& s) {
        got = *p;
        text = s;
      },
      std::move(owned), "copied");
  g.join();
  cr_assert_eq(got, 7);
  cr_assert_str_eq(text.c_str(), "copied");
  Fiber h = Fiber::spawn(add_one, static_cast<void*>(place));
  h.join(&r);
  cr_assert_eq(r, place + 1);
  Fiber moved = Fiber::spawn([] {});
  Fiber to = std::move(moved);
  cr_assert_not(moved);
  cr_assert(static_cast<bool>(to));
  cr_assert_eq(to.join(), 0);
  cr_assert_eq(Fiber::spawn(FiberOptions{1, nullptr, false, true}, [] {}).error(), EINVAL);
}

}  // namespace
