// The fiber API (sync/include/fiberthread/fiberthread.h, sync/include/fiberthread/fiber.h): each sentence of its contract. tests/programs/quick/fiber_api.sh runs this with one
// and many workers, under FIBERTHREAD_CHAOS and on NPTL as well.
#include "fiberthread/fiber.h"

#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sched/chaos.h"
#include "sched/worker.h"
#include "tests/single_steps.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

constexpr uint64_t kLong = 60'000 * kMs;  // against hangs

FiberRecord* record(FiberRef f) { return reinterpret_cast<FiberRecord*>(reinterpret_cast<uint64_t>(f.handle()) & 0xffff'ffff'ffc0); }
bool on_nptl() { return !sched_start(); }

template <class Condition>
void until(Condition condition) {
  while (!condition()) fiberthread_sleep(100'000);
}
void until_waits(FiberRef f) {
  until([&] { return record(f)->state.load() == State::Parked && !record(f)->fresh.load(); });
}
// A call that waits in the kernel cannot be told from one that is about to.
bool waits_for(FiberRef f, const char* what) {
  return record(f)->state.load() == State::Parked && record(f)->reason.what && !strcmp(record(f)->reason.what, what);
}
// Queues of one worker are in order, unless chaos is wanted.
bool one_in_order() {
  if (chaos_seed || options.force_nptl || options.fail_self_check) return false;
  run_on(1);
  return !on_nptl();
}

// Of a fiber: whether anybody on its worker has been preempted since, itself included.
class Preemptions {
 public:
  bool any() const { return count() != before_; }

 private:
  static uint64_t count() { return fiberthread::self()->worker->preemptions.load(); }
  uint64_t before_ = count();
};

// The order in which `body` has called its argument. It runs in a fiber that has just begun to run, and is seldom preempted in the middle
// (under an emulator, which has to translate all this first, each 15th time); and again, if it was, or if they did not run in turn.
std::vector<int> order_of(const std::function<void(const std::function<void(int)>&)>& body) {
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

void* add_one(void* p) { return static_cast<char*>(p) + 1; }
void* pass(void* p) { return p; }
char place[4];

// ---- making and starting ----

Test(fiber_api, spawned_it_runs_with_its_argument_and_join_gives_the_result) {
  fiberthread_t f;
  void* result;
  cr_assert_eq(fiberthread_spawn(&f, nullptr, add_one, place), 0);
  cr_assert_eq(fiberthread_join(f, &result), 0);
  cr_assert_eq(result, place + 1);
}

Test(fiber_api, options_that_cannot_be_had) {
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

Test(fiber_api, stack_size) {
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
    cr_assert_geq(got + (on_nptl() ? 65536 : 0), size);  // there, the guard is inside
    cr_assert_lt(got, size + (512 << 10));
  }
}

Test(fiber_api, attributes_say_the_rest) {
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
  o.stack_size = 256 << 10;  // goes before that of attr
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

Test(fiber_api, bound_by_option_and_by_attribute) {
  if (on_nptl()) return;
  bool bound = false;
  auto look = [&] { bound = fiberthread::self()->bound.load() != nullptr; };
  Fiber::spawn(FiberOptions{0, nullptr, true, true}, look).join();
  cr_assert(bound);
  Fiber::spawn(look).join();
  cr_assert_not(bound);
  pthread_attr_t a;
  pthread_attr_init(&a);
  cr_assert_eq(fiberthread_attr_setbound(&a, 1), 0);
  cr_assert_eq(fiberthread_attr_setbound(&a, 2), EINVAL);
  pthread_t t;
  pthread_create(&t, &a, [](void* p) -> void* { (*static_cast<decltype(look)*>(p))(); return nullptr; }, &look);
  pthread_join(t, nullptr);
  cr_assert(bound);
}

Test(fiber_api, a_new_one_runs_when_it_is_started_and_once) {
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

Test(fiber_api, start_gives_the_argument) {
  fiberthread_t f;
  void* result;
  cr_assert_eq(fiberthread_new(&f, nullptr, add_one), 0);
  cr_assert_eq(fiberthread_start(f, place + 1), 0);
  cr_assert_eq(fiberthread_join(f, &result), 0);
  cr_assert_eq(result, place + 2);
}

Test(fiber_api, a_new_one_can_be_discarded) {
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
    ~Mark() { if (to) *to = true; }
  };
  { Fiber f = Fiber::create([m = Mark(&destroyed)] { (void)m; }); }
  cr_assert(destroyed);
}

// Only one of many starts it.
Test(fiber_api, starts_race) {
  for (int round = 0; round < 50; round++) {
    static std::atomic<int> runs;
    std::atomic<int> started{0};
    runs = 0;
    fiberthread_t f;
    cr_assert_eq(fiberthread_new(&f, nullptr, [](void* p) -> void* { runs++; return p; }), 0);
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

// ---- call ----

Test(fiber_api, called_it_runs_at_once_until_it_yields) {
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

Test(fiber_api, called_it_runs_before_those_that_are_ready) {
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

// In whatever call it waits first, and not when it is preempted.
Test(fiber_api, the_caller_goes_on_when_it_first_waits_or_ends) {
  Threads others;
  for (int i = 0; i < 3; i++)
    others.fiber([] {
      uint64_t end = now_ns() + 50 * kMs;
      while (now_ns() < end) {
      }
    });
  for (int how = 0; how < (on_nptl() ? 5 : 7); how++) {  // there, waits in libc are not seen
    std::atomic<int> at{0};
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    sem_t sem;
    sem_init(&sem, 0, 0);
    pthread_mutex_lock(&m);
    Fiber f = Fiber::create([&] {
      at = 1;
      uint64_t end = now_ns() + 10 * kMs;  // it is preempted meanwhile
      while (now_ns() < end) {
      }
      at = 2;
      char c;
      switch (how) {
        case 0: return;
        case 1: Fiber::yield(); break;
        case 2: Fiber::reschedule(); break;
        case 3: Fiber::sleep(kMs); break;
        case 4: pthread_mutex_lock(&m); pthread_mutex_unlock(&m); break;
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

Test(fiber_api, a_wake_up_that_came_before_does_not_keep_the_caller_waiting) {
  std::atomic<bool> ended{false};
  Fiber f = Fiber::create([&] {
    FiberRef me = Fiber::self();
    Fiber::spawn([me] { me.wakeup(); }).join();  // this is its first wait
    Fiber::yield();
    ended = true;
  });
  cr_assert_eq(f.call(), 0);
  cr_assert_eq(f.join(), 0);
  cr_assert(ended);
}

Test(fiber_api, calls_nest) {
  std::vector<int> order;
  Fiber inner = Fiber::create([&] {
    order.push_back(2);
    Fiber::yield();
    order.push_back(6);
  });
  Fiber outer = Fiber::create([&] {
    order.push_back(1);
    cr_assert_eq(inner.call(), 0);
    order.push_back(3);  // the inner one's yield has ended the inner call only
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

Test(fiber_api, calls_from_foreign_threads_and_bound_fibers_and_of_bound_ones) {
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

Test(fiber_api, a_cancelled_caller_does_not_wait_for_the_callee) {
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

// ---- who is it ----

Test(fiber_api, ids_names_and_look_up) {
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

Test(fiber_api, the_maker_gives_its_name) {
  Fiber::self().set_name("maker");
  char name[16] = "";
  Fiber::spawn([&] { Fiber::self().name(name, sizeof name); }).join();
  cr_assert_str_eq(name, "maker");
  cr_assert_eq(Fiber::self().name(name, sizeof name), 0);
  cr_assert_str_eq(name, "maker");
}

Test(fiber_api, all_are_visited) {
  constexpr size_t kFibers = 300;
  std::atomic<bool> go{false};
  std::vector<Fiber> fibers;
  for (size_t i = 0; i < kFibers; i++)
    fibers.push_back(Fiber::spawn([&] {
      while (!go) Fiber::sleep(kMs);
    }));
  Fiber fresh = Fiber::create([] {});
  Fiber ended = Fiber::spawn([] {});
  until([&] { return record(ended)->done.load() != 0; });
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
  // The visitor may wait, make and end fibers.
  visits = 0;
  Fiber::each([&](FiberRef) {
    Fiber::spawn([] {}).join();
    return ++visits < 20;
  });
  go = true;
  for (Fiber& f : fibers) f.join();
  ended.join();
}

// ---- yield and wakeup ----

Test(fiber_api, woken_ones_run_in_the_order_of_the_wake_ups) {
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
    // Whatever runs in turn with them.
    std::atomic<bool> stop{false};
    std::vector<Fiber> more;
    for (int i = 0; i < others; i++)
      more.push_back(Fiber::spawn([&] {
        while (!stop) Fiber::reschedule();
      }));
    Fiber::sleep(kMs);
    bool switched = false;
    std::optional<Preemptions> preemptions;
    // From a fiber that has just begun to run, so that it is seldom preempted in the middle.
    Fiber::spawn([&] {
      Fiber::sleep(kMs);
      preemptions.emplace();
      for (Fiber& f : fibers) {
        f.wakeup();
        switched |= ran != 0;
      }
    }).join();
    for (Fiber& f : fibers) f.join();
    bool preempted = preemptions->any();  // also of those that were woken, before they said who they are
    stop = true;
    for (Fiber& f : more) f.join();
    if (!in_turn.held() || preempted) continue;
    cr_assert(!switched);
    for (int i = 0; i < 100; i++) cr_assert_eq(order[i], i, "place %d has %d", i, order[i].load());
    others += 3;
  }
}

Test(fiber_api, wake_ups_are_kept_once_and_not_for_oneself) {
  std::atomic<int> yields{0};
  std::atomic<bool> go{false};
  Fiber f = Fiber::spawn([&] {
    while (!go) {
    }
    cr_assert_eq(Fiber::self().wakeup(), 0);  // nothing
    while (Fiber::yield() == 0) yields++;
  });
  // It runs, or waits for its turn to.
  for (int i = 0; i < 5; i++) cr_assert_eq(f.wakeup(), 0);
  go = true;
  until_waits(f);
  cr_assert_eq(yields, 1);
  // Twice while it is ready: once. Its worker may have run it in between.
  int before = yields;
  f.wakeup();
  f.wakeup();
  until([&] { return yields > before && record(f)->state.load() == State::Parked; });
  cr_assert_leq(yields, before + 2);
  cr_assert_eq(Fiber::self().wakeup(), 0);
  cr_assert_eq(Fiber::yield_timeout(kMs), ETIMEDOUT);
  f.cancel();
  f.join();
}

Test(fiber_api, new_and_ended_ones_are_not_woken) {
  int e = -1;
  Fiber f = Fiber::create([&] { e = Fiber::yield_timeout(5 * kMs); });
  cr_assert_eq(f.wakeup(), 0);
  f.start();
  until([&] { return record(f)->done.load() != 0; });
  cr_assert_eq(e, ETIMEDOUT);
  cr_assert_eq(f.wakeup(), 0);
  FiberRef r = f;
  f.join();
  cr_assert_eq(r.wakeup(), ESRCH);
}

Test(fiber_api, a_wake_up_shows_what_was_done_before) {
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

Test(fiber_api, a_signal_handler_wakes) {
  static FiberRef sleeper;
  Fiber f = Fiber::spawn([] { cr_assert_eq(Fiber::yield_timeout(kLong), 0); });
  sleeper = f;
  signal(SIGUSR1, [](int) { sleeper.wakeup(); });
  until_waits(f);
  raise(SIGUSR1);
  cr_assert_eq(f.join(), 0);
}

Test(fiber_api, timeouts_are_not_early) {
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

Test(fiber_api, wake_ups_do_not_end_other_waits) {
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

Test(fiber_api, reschedule_goes_behind_those_that_are_ready) {
  if (!one_in_order()) return;
  std::vector<int> order = order_of([](auto& ran) {
    std::vector<Fiber> fibers;
    // Few enough that sysmon leaves them in this queue.
    for (int i = 0; i < 3; i++) fibers.push_back(Fiber::spawn([&, i] { ran(i); }));
    Fiber::reschedule();
    ran(99);
    for (Fiber& f : fibers) f.join();
  });
  cr_assert(order == (std::vector<int>{0, 1, 2, 99}));
}

// ---- cancelling ----

// Each kind of wait, ended while it lasts, and ended at once in one that was cancelled before.
void cancels(const char* what, int expected, const std::function<int()>& wait, bool waits_parked = true) {
  for (bool before : {false, true}) {
    std::atomic<int> e{-1};
    std::atomic<bool> go{false};
    Fiber f = Fiber::spawn([&] {
      if (before)
        while (!go) Fiber::reschedule();
      e = wait();
      cr_assert(Fiber::cancelled(), "%s", what);
      cr_assert_eq(Fiber::sleep(kLong), ECANCELED, "%s", what);  // it stays so
    });
    if (!before && waits_parked) until_waits(f);
    cr_assert_eq(f.cancel(), 0);
    cr_assert_eq(f.cancel(), 0);
    go = true;
    cr_assert_eq(f.join(), 0);
    cr_assert_eq(e, expected, "%s: %d", what, e.load());
  }
}

Test(fiber_api, cancelling_ends_each_wait_of_this_interface) {
  cancels("yield", ECANCELED, [] { return Fiber::yield(); });
  cancels("yield_timeout", ECANCELED, [] { return Fiber::yield_timeout(kLong); });
  cancels("sleep", ECANCELED, [] { return Fiber::sleep(kLong); });
  std::atomic<bool> go{false};
  Fiber other = Fiber::spawn([&] {
    while (!go) Fiber::sleep(kMs);
  });
  cancels("join", ECANCELED, [&] { return fiberthread_join(other.handle(), nullptr); });
  cancels("join_timeout", ECANCELED, [&] { return fiberthread_join_timeout(other.handle(), nullptr, kLong); });
  go = true;
  cr_assert_eq(other.join(), 0);
}

int result(long r) { return r < 0 ? errno : 0; }

Test(fiber_api, cancelling_ends_libcs_waits_that_park) {
  if (on_nptl()) return;
  int p[2], s[2];
  cr_assert_eq(pipe(p), 0);
  cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
  char buffer[4096] = {};
  cancels("read of a pipe", ECANCELED, [&] { return result(read(p[0], buffer, 1)); });
  cancels("read of a socket", ECANCELED, [&] { return result(read(s[0], buffer, 1)); });
  cancels("recv", ECANCELED, [&] { return result(recv(s[0], buffer, 1, 0)); });
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  cr_assert_eq(bind(listener, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  cr_assert_eq(listen(listener, 5), 0);
  cancels("accept", ECANCELED, [&] { return result(accept(listener, nullptr, nullptr)); });
  pollfd fd{p[0], POLLIN, 0};
  cancels("poll", ECANCELED, [&] { return result(poll(&fd, 1, 60'000)); });
  cancels("poll without end", ECANCELED, [&] { return result(poll(&fd, 1, -1)); });
  cancels("select", ECANCELED, [&] {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(p[0], &set);
    return result(select(p[0] + 1, &set, nullptr, nullptr, nullptr));
  });
  int e = epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(e, EPOLL_CTL_ADD, p[0], &event);
  cancels("epoll_wait", ECANCELED, [&] { return result(epoll_wait(e, &event, 1, -1)); });
  timespec minute{60, 0};
  cancels("nanosleep", ECANCELED, [&] { return result(nanosleep(&minute, nullptr)); });
  cancels("clock_nanosleep", ECANCELED, [&] { return clock_nanosleep(CLOCK_REALTIME, 0, &minute, nullptr); });
  cancels("usleep", ECANCELED, [&] { return result(usleep(60'000'000)); });
  cancels("sleep", 1, [&] { return sleep(60) >= 59; });
  sem_t sem;
  sem_init(&sem, 0, 0);
  cancels("sem_wait", ECANCELED, [&] { return result(sem_wait(&sem)); });
  timespec late;
  clock_gettime(CLOCK_REALTIME, &late);
  late.tv_sec += 60;
  cancels("sem_timedwait", ECANCELED, [&] { return result(sem_timedwait(&sem, &late)); });
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  int sig;
  cancels("sigwait", ECANCELED, [&] { return sigwait(&set, &sig); });
  cancels("sigtimedwait", ECANCELED, [&] { return result(sigtimedwait(&set, nullptr, &minute)); });
  cancels("pause", ECANCELED, [&] { return result(pause()); });
  // The rest is given up, what has gone is the result.
  fcntl(p[1], F_SETFL, O_NONBLOCK);
  while (write(p[1], buffer, sizeof buffer) > 0) {
  }
  fcntl(p[1], F_SETFL, 0);
  cancels("write", ECANCELED, [&] { return result(write(p[1], buffer, sizeof buffer)); });
}

Test(fiber_api, what_has_come_goes_before_a_cancel) {
  int p[2];
  cr_assert_eq(pipe(p), 0);
  cr_assert_eq(write(p[1], "xy", 2), 2);
  sem_t sem;
  sem_init(&sem, 0, 1);
  Fiber other = Fiber::spawn([] {});
  until([&] { return record(other)->done.load() != 0; });
  Fiber f = Fiber::create([&] {
    char c;
    cr_assert(Fiber::cancelled());  // a new one begins so
    cr_assert_eq(read(p[0], &c, 1), 1);
    pollfd fd{p[0], POLLIN, 0};
    cr_assert_eq(poll(&fd, 1, -1), 1);
    cr_assert_eq(sem_wait(&sem), 0);
    cr_assert_eq(fiberthread_join(other.handle(), nullptr), 0);
    cr_assert_eq(Fiber::yield(), ECANCELED);
  });
  FiberRef gone = other;
  cr_assert_eq(f.cancel(), 0);
  f.start();
  f.join();
  cr_assert_eq(other.detach(), ESRCH);
  cr_assert_eq(gone.cancel(), ESRCH);
  other.join();
  new (&other) Fiber;
}

Test(fiber_api, a_wait_for_a_condition_ends_once_for_no_reason) {
  pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t c = PTHREAD_COND_INITIALIZER;
  std::atomic<int> times{0};
  bool finished = false;
  Fiber f = Fiber::spawn([&] {
    pthread_mutex_lock(&m);
    while (!finished) {
      cr_assert_eq(pthread_cond_wait(&c, &m), 0);
      times++;
    }
    pthread_mutex_unlock(&m);
  });
  until_waits(f);
  f.cancel();
  until([&] { return times == 1; });
  until_waits(f);
  Fiber::sleep(2 * kMs);
  pthread_mutex_lock(&m);
  cr_assert_eq(times, 1);
  finished = true;
  pthread_cond_signal(&c);
  pthread_mutex_unlock(&m);
  f.join();
  cr_assert_eq(times, 2);
}

Test(fiber_api, locks_and_pthread_join_are_not_ended) {
  pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&m);
  std::atomic<int> at{0};
  pthread_t other;
  pthread_create(&other, nullptr, [](void* p) -> void* {
    usleep(20'000);
    return p;
  }, nullptr);
  Fiber f = Fiber::spawn([&] {
    cr_assert_eq(pthread_mutex_lock(&m), 0);
    at = 1;
    pthread_mutex_unlock(&m);
    cr_assert_eq(pthread_join(other, nullptr), 0);
    at = 2;
  });
  until_waits(f);
  f.cancel();
  Fiber::sleep(5 * kMs);
  cr_assert_eq(at, 0);
  pthread_mutex_unlock(&m);
  f.join();
  cr_assert_eq(at, 2);
}

Test(fiber_api, while_it_is_not_cancellable_it_waits_as_ever) {
  std::atomic<int> at{0};
  Fiber f = Fiber::spawn([&] {
    cr_assert(Fiber::set_cancellable(false));
    cr_assert_not(Fiber::set_cancellable(false));
    at = 1;
    cr_assert_eq(Fiber::yield_timeout(kLong), 0);
    cr_assert_not(Fiber::cancelled());
    cr_assert_eq(Fiber::sleep(kMs), 0);
    cr_assert_not(Fiber::set_cancellable(true));
    cr_assert(Fiber::cancelled());
    cr_assert_eq(Fiber::sleep(kLong), ECANCELED);
  });
  until([&] { return at == 1; });
  f.cancel();
  Fiber::sleep(2 * kMs);
  f.wakeup();
  f.join();
}

Test(fiber_api, foreign_threads_and_plain_ones_are_cancelled_and_woken_alike) {
  std::atomic<fiberthread_t> handle{nullptr};
  std::atomic<int> at{0};
  auto body = [&] {
    handle = fiberthread_self();
    cr_assert_eq(Fiber::yield(), 0);
    at = 1;
    cr_assert_eq(Fiber::sleep(kLong), ECANCELED);
    cr_assert_eq(Fiber::yield(), ECANCELED);
  };
  for (bool kernel : {false, true}) {
    Threads t;
    if (kernel) t.kernel(body);
    else t.fiber(body);
    until([&] { return handle != nullptr; });
    FiberRef f = handle.load();
    f.wakeup();
    until([&] { return at == 1; });
    cr_assert_eq(f.cancel(), 0);
    t.join();
    if (!kernel) cr_assert_eq(f.cancel(), ESRCH);
    handle = nullptr;
    at = 0;
  }
}

// ---- the end ----

Test(fiber_api, join_is_once) {
  Fiber f = Fiber::spawn([] {});
  FiberRef r = f;
  cr_assert_eq(f.join(), 0);
  cr_assert_eq(fiberthread_join(r.handle(), nullptr), ESRCH);
  cr_assert_eq(fiberthread_join_timeout(r.handle(), nullptr, 0), ESRCH);
  cr_assert_eq(f.join(), ESRCH);
  cr_assert_eq(fiberthread_join(nullptr, nullptr), ESRCH);
}

Test(fiber_api, who_must_not_be_joined) {
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
  // Two that join the same.
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

// Just one of the two is told, however near to each other they come, and the other's join is over when that one has ended.
Test(fiber_api, two_that_join_each_other) {
  if (on_nptl()) return;  // libc may not see it
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

Test(fiber_api, a_join_that_timed_out_may_come_again) {
  Fiber f = Fiber::spawn([] { Fiber::yield(); });
  for (int i = 0; i < 20; i++) cr_assert_eq(f.join_timeout(100'000), ETIMEDOUT);
  f.wakeup();
  cr_assert_eq(f.join_timeout(kLong), 0);
}

Test(fiber_api, joinable_or_not) {
  // Before it starts, while it runs, after it has ended; and back.
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
  until([&] { return record(c)->done.load() != 0; });
  FiberRef r = c;
  cr_assert_eq(c.detach(), 0);
  cr_assert_eq(r.set_joinable(true), ESRCH);
  cr_assert_eq(r.wakeup(), ESRCH);
  Fiber d = Fiber::spawn(FiberOptions{0, nullptr, false, false}, [] { Fiber::yield(); });
  r = d;
  d.wakeup();
  until([&] { return r.wakeup() == ESRCH; });
}

Test(fiber_api, pthread_join_and_detach_on_its_handle) {
  for (int i = 0; i < 100; i++) {
    fiberthread_t f;
    pthread_t t;
    void* r;
    // It must not end before the handle is asked for: that is only good as long as it is there.
    cr_assert_eq(fiberthread_new(&f, nullptr, add_one), 0);
    cr_assert_eq(fiberthread_pthread(f, &t), 0);
    cr_assert_eq(fiberthread_start(f, place), 0);
    cr_assert_eq(pthread_join(t, &r), 0);
    cr_assert_eq(r, place + 1);
    if (!on_nptl()) cr_assert_eq(fiberthread_join(f, nullptr), ESRCH);
  }
}

Test(fiber_api, one_that_pthread_create_made_is_joined_here) {
  if (on_nptl()) return;  // libc's threads are foreign there
  for (int i = 0; i < 100; i++) {
    pthread_t t;
    void* r;
    pthread_create(&t, nullptr, add_one, place);
    fiberthread_t f = fiberthread_of(t);
    cr_assert_not_null(f);
    cr_assert_eq(fiberthread_join(f, &r), 0);
    cr_assert_eq(r, place + 1);
    // A second join is as with this libc: since 2.43, it is treated like the first.
    cr_assert_eq(pthread_join(t, nullptr), strverscmp(gnu_get_libc_version(), "2.43") >= 0 ? 0 : ESRCH);
    cr_assert_null(fiberthread_of(t));
  }
}

Test(fiber_api, pthread_exit_and_pthread_cancel_end_it) {
  fiberthread_t f;
  void* r;
  fiberthread_spawn(&f, nullptr, [](void* p) -> void* { pthread_exit(static_cast<char*>(p) + 2); }, place);
  cr_assert_eq(fiberthread_join(f, &r), 0);
  cr_assert_eq(r, place + 2);
  fiberthread_spawn(&f, nullptr, [](void*) -> void* {
    for (;;) usleep(1'000'000);
  }, nullptr);
  pthread_t t;
  cr_assert_eq(fiberthread_pthread(f, &t), 0);
  cr_assert_eq(pthread_cancel(t), 0);
  cr_assert_eq(fiberthread_join(f, &r), 0);
  cr_assert_eq(r, PTHREAD_CANCELED);
}

// A handle names one fiber for ever, though there are only some records.
Test(fiber_api, stale_handles) {
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

Test(fiber_api, recycling_shows_in_the_statistics) {
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

Test(fiber_api, destroying_a_joinable_one_aborts, .signal = SIGABRT) {
  Fiber f = Fiber::spawn([] {});
}

// ---- fiber-local storage, and what else is a fiber's own ----

Test(fiber_api, keys) {
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
  cr_assert_eq(destroyed, 20);  // before the join returns
  cr_assert_eq(fiberthread_get_local(key), &hundred);
  cr_assert_eq(fiberthread_key_delete(key), 0);
  cr_assert_eq(fiberthread_set_local(key, &one), EINVAL);
}

Test(fiber_api, fiber_locals_are_deleted) {
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

Test(fiber_api, a_fiber_is_a_thread) {
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

Test(fiber_api, errno_is_left_alone) {
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

Test(fiber_api, callables_of_all_kinds) {
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
  Fiber g = Fiber::spawn([&got, &text](std::unique_ptr<int> p, const std::string& s) { got = *p; text = s; }, std::move(owned), "copied");
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

// ---- from where ----

Test(fiber_api, from_main_before_any_fiber) {
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

Test(fiber_api, foreign_threads_use_all_of_it) {
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
// The child has the fiber that forked, and not who called it.
Test(fiber_api, a_called_fiber_forks) {
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

Test(fiber_api, in_the_child_of_a_fork) {
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
      Fiber::each([&](FiberRef f) { n++; ok = ok && f == me; return true; });
      ok = ok && n == 1;
      ok = ok && Fiber::yield_timeout(kMs) == ETIMEDOUT;
      std::atomic<int> ran{0};
      for (int i = 0; i < 50; i++) Fiber::spawn([&] { ran++; Fiber::yield_timeout(1000); }).join();
      Fiber called = Fiber::create([&] { ran++; Fiber::yield(); });
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

// A handle is never unknown while others start its fiber: tried at each instruction of a look at it, where a kernel thread is stopped, by
// single steps, until the fiber has begun to run.
Test(fiber_api, it_is_known_while_it_is_started) {
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

// A handle may become stale while one wakes by it. That one takes nothing from the next fiber that has the record: tried at each
// instruction of fiberthread_wakeup(), where a kernel thread is stopped, by single steps, until the fiber has ended and the next one was woken.
Test(fiber_api, a_late_wake_up_takes_none_away, .timeout = 240) {
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
    first.cancel();  // it may be marked as woken, but not be awake yet
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

// ---- all at once ----

// Wakers, cancellers, joiners with and without a time, half of them foreign threads, on fibers that come and go. Each fiber that was made
// ends, is joined once, and has counted what it was woken for.
Test(fiber_api, stress) {
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
        while (now_ns() < end || made <= 5) {  // however slow the machine
          Place& p = places[random(kPlaces)];
          switch (random(8)) {
            case 0:
            case 1: {  // another one there; the old one is cancelled and joined
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
              new (&f) Fiber;  // whoever takes it out joins it
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

// No wake-up is lost: two that hand a turn to and fro, and a third that disturbs.
Test(fiber_api, wake_ups_are_not_lost) {
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
