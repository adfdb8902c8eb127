// SPDX-License-Identifier: MIT
// FiberFuture: set once, seen by the one who waits, however he does it; given up in time; gone as soon as it is seen.
// alone: sync
#include "fiberthread/fiber_future.h"

#include "tests/test.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <string>

#include "fiberthread/fair_fiber_mutex.h"
#include "fiberthread/fiber_sequencer.h"
#include "fiberthread/channel.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

struct Called : SubscribeCallback {
  std::atomic<int> times{0}, error{-1};
  Called()
      : SubscribeCallback{[](SubscribeCallback* self, int e) {
          auto* me = static_cast<Called*>(self);
          me->error = e;
          me->times++;
        }} {}
};

Test(fiber_future, zeros_are_not_set) {
  alignas(FiberFuture) unsigned char memory[sizeof(FiberFuture)] = {};
  auto& f = *reinterpret_cast<FiberFuture*>(memory);
  cr_assert(!f.isSet());
  cr_assert_eq(f.error(), 0);
  cr_assert_eq(f.waitUntil(0), ETIMEDOUT);
  cr_assert(!f.isSet());
}

Test(fiber_future, first_set_counts) {
  FiberFuture f, g;
  cr_assert(f.set(ENOENT));
  cr_assert(f.isSet());
  cr_assert(!f.set(0));
  cr_assert_eq(f.error(), ENOENT);
  cr_assert_eq(f.wait(), ENOENT);
  cr_assert_eq(f.wait(), ENOENT);  // stays set
  cr_assert(g.set());
  cr_assert_eq(g.wait(), 0);
  f.reset();
  cr_assert(!f.isSet());
  cr_assert(f.set(-7));  // any int comes through
  cr_assert_eq(f.wait(), -7);
}

Test(fiber_future, waits_for_each_kind_by_each_kind, .timeout = 240) {
  for (size_t waiter = 0; waiter < 3; waiter++)
    for (size_t setter = 0; setter < 3; setter++) {
      FiberFuture f;
      std::atomic<FiberRecord*> who{nullptr};
      int before = 0;
      Threads t;
      t.any(waiter, [&] {
        who = self();
        cr_assert_eq(f.wait(), 5);
        cr_assert_eq(before, 1);  // what came before set() is seen
      });
      t.any(setter, [&] {
        while (!who) yield();
        until_parked(who);
        cr_assert(!f.isSet());
        before = 1;
        cr_assert(f.set(5));
      });
    }
}

void gives_up(FiberFuture& f) {
  for (uint64_t ms : {0, 1, 15}) {
    uint64_t deadline = now_ns() + ms * kMs;
    cr_assert_eq(f.waitUntil(deadline), ETIMEDOUT);
    cr_assert(now_ns() >= deadline);
    deadline = now_ns() + ms * kMs;
    cr_assert_eq(f.waitWithTimeout(ms * kMs), ETIMEDOUT);
    cr_assert(now_ns() >= deadline);
    FiberFuture g;
    FiberFuture* both[] = {&f, &g};
    deadline = now_ns() + ms * kMs;
    cr_assert_eq(FiberFuture::waitForMultiple(both, 2, deadline), ETIMEDOUT);
    cr_assert(now_ns() >= deadline);
  }
}

Test(fiber_future, gives_up_in_time_but_not_early) {
  FiberFuture f;
  for (size_t kind = 0; kind < 3; kind++) {
    Threads t;
    t.any(kind, [&] { gives_up(f); });
  }
  f.set(3);
  cr_assert_eq(f.waitUntil(0), 3);  // what is there is returned in any case
  cr_assert_eq(f.waitWithTimeout(0), 3);
  FiberFuture* one[] = {&f};
  cr_assert_eq(FiberFuture::waitForMultiple(one, 1, 0), 0);
}

Test(fiber_future, ends_when_cancelled) {
  for (size_t kind = 0; kind < 3; kind++) {
    FiberFuture f, g;
    std::atomic<FiberRecord*> who{nullptr};
    std::atomic<int> step{0};
    Threads t;
    t.any(kind, [&] {
      who = self();
      cr_assert_eq(f.wait(), ECANCELED);
      cr_assert(!f.isSet());
      cr_assert_eq(f.wait(), ECANCELED);  // it stays cancelled
      FiberFuture* both[] = {&f, &g};
      cr_assert_eq(FiberFuture::waitForMultiple(both, 2), ECANCELED);
      forget_cancel();
      step = 1;
      cr_assert_eq(FiberFuture::waitForMultiple(both, 2), ECANCELED);
      cr_assert(!f.isSet() && !g.isSet());
      cr_assert(g.set(4));
      cr_assert_eq(g.wait(), 4);  // what is there comes first
      cr_assert_eq(FiberFuture::waitForMultiple(both, 2), 0);
      forget_cancel();
      step = 2;
      cr_assert_eq(f.wait(), 9);  // can be waited for again
    });
    while (!who) yield();
    until_parked(who);
    interrupt(who, kInterruptEnd);
    while (step != 1) yield();
    until_parked(who);
    interrupt(who, kInterruptEnd);
    while (step != 2) yield();
    until_parked(who);
    cr_assert(f.set(9));
  }
}

Test(fiber_future, has_one_consumer) {
  FiberFuture f, g;
  Called called;
  std::atomic<FiberRecord*> who{nullptr};
  Threads t;
  t.fiber([&] {
    who = self();
    cr_assert_eq(f.wait(), 0);
  });
  while (!who) yield();
  until_parked(who);
  FiberFuture* both[] = {&g, &f};
  cr_assert_eq(f.wait(), EBUSY);
  cr_assert_eq(f.waitWithTimeout(0), EBUSY);
  cr_assert_eq(f.subscribe(&called), EBUSY);
  cr_assert(!f.unsubscribe(&called));
  cr_assert_eq(FiberFuture::waitForMultiple(both, 2), EBUSY);
  cr_assert_eq(g.waitUntil(0), ETIMEDOUT);  // nobody was left with it
  f.set();
  t.join();
  cr_assert_eq(called.times, 0);
}

Test(fiber_future, calls_back) {
  FiberFuture f, g;
  Called a, b, c;
  cr_assert_eq(f.subscribe(&a), 0);
  cr_assert_eq(f.subscribe(&b), EBUSY);
  cr_assert_eq(f.wait(), EBUSY);
  cr_assert_eq(a.times, 0);
  cr_assert(f.set(6));
  cr_assert(a.times == 1 && a.error == 6);
  cr_assert(!f.unsubscribe(&a));
  cr_assert_eq(f.subscribe(&b), 0);  // set already: here and now
  cr_assert(b.times == 1 && b.error == 6);
  cr_assert(!f.set(7));
  cr_assert(a.times == 1 && b.times == 1);
  cr_assert_eq(g.subscribe(&c), 0);
  cr_assert(g.unsubscribe(&c));
  cr_assert(!g.unsubscribe(&c));
  cr_assert(g.set(1));
  cr_assert_eq(c.times, 0);
}

FiberFuture* set_by_handler;
Test(fiber_future, may_be_set_by_a_handler) {
  FiberFuture f;
  set_by_handler = &f;
  signal(SIGUSR1, [](int) { set_by_handler->set(8); });
  std::atomic<FiberRecord*> who{nullptr};
  Threads t;
  t.fiber([&] {
    who = self();
    cr_assert_eq(f.wait(), 8);
  });
  while (!who) yield();
  until_parked(who);
  raise(SIGUSR1);
}

Test(fiber_future, multiple) {
  FiberFuture f[5];
  FiberFuture* all[5];
  for (int i = 0; i < 5; i++) all[i] = &f[i];
  cr_assert_eq(FiberFuture::waitForMultiple(all, 0), EINVAL);
  FiberFuture* twice[] = {&f[0], &f[1], &f[0]};
  cr_assert_eq(FiberFuture::waitForMultiple(twice, 3), EINVAL);
  for (auto& one : f) cr_assert_eq(one.waitUntil(0), ETIMEDOUT);  // nothing is left there
  for (int i = 0; i < 5; i++) {
    cr_assert(f[i].set(i));  // before it begins
    cr_assert_eq(FiberFuture::waitForMultiple(all, 5), 0);
    f[i].reset();
    for (size_t kind = 0; kind < 3; kind++) {
      std::atomic<FiberRecord*> who{nullptr};
      Threads t;
      t.any(kind, [&] {
        who = self();
        cr_assert_eq(FiberFuture::waitForMultiple(all, 5), 0);
        for (int k = 0; k < 5; k++) cr_assert_eq(f[k].isSet(), k == i);
        cr_assert_eq(f[i].wait(), i);
        for (int k = 0; k < 5; k++)
          if (k != i) cr_assert_eq(f[k].waitUntil(0), ETIMEDOUT);
      });
      while (!who) yield();
      until_parked(who);
      f[i].set(i);
      t.join();
      f[i].reset();
    }
  }
}

Test(fiber_future, used_again_and_again, .timeout = 240) {
  constexpr int kRounds = 10000;
  for (size_t kind = 0; kind < 3; kind++) {
    FiberFuture ping, pong;
    Threads t;
    t.any(kind, [&] {
      for (int i = 0; i < kRounds; i++) {
        cr_assert_eq(ping.wait(), i);
        ping.reset();
        cr_assert(pong.set(i + 1));
      }
    });
    for (int i = 0; i < kRounds; i++) {
      cr_assert(ping.set(i));
      cr_assert_eq(pong.wait(), i + 1);
      pong.reset();
    }
  }
}

#ifdef __x86_64__  // elsewhere the emulator's own threads count as foreign ones, who might wake somebody
// Who waits for what nobody can set any more is in the report of the deadlock.
Test(fiber_future, deadlock_names_futures) {
  int end[2];
  cr_assert_eq(pipe(end), 0);
  pid_t child = fork();
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    dup2(end[1], 2);
    options.deadlock = DeadlockPolicy::Abort;
    FiberFuture f, g, h;
    FiberSequencer s;
    FairFiberMutex m;
    m.lock();
    Threads t;
    t.fiber([&] { f.wait(); });
    t.fiber([&] {
      FiberFuture* both[] = {&g, &h};
      FiberFuture::waitForMultiple(both, 2);
    });
    t.fiber([&] { s.wait(1); });
    t.fiber([&] { m.lock(); });
    auto empty = Channel<int>::make(3), full = Channel<int>::make(2), none = Channel<int>::make(0);
    full.sender.send(1);
    full.sender.send(2);
    none.sender.close();
    for (int i = 0; i < 2; i++) t.fiber([&] { empty.receiver.receive(); });
    t.fiber([&] { full.sender.send(3); });
    t.fiber([&] {
      int v;
      select(ReceiveCase(empty.receiver, v), SendCase(full.sender, 4));
    });
    t.join();
    _exit(0);
  }
  close(end[1]);
  std::string said;
  char part[500];
  pollfd p{end[0], POLLIN, 0};
  ssize_t n = 1;
  while (n > 0 && poll(&p, 1, 60'000) == 1)
    if ((n = read(end[0], part, sizeof part)) > 0) said.append(part, static_cast<size_t>(n));
  if (n > 0) kill(child, SIGKILL);  // an alarm of its own would be something that may yet end its waits
  close(end[0]);
  int status = 0;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "status %d: %s", status, said.c_str());
  for (const char* what :
       {"future 0x", "futures 0x", "sequencer 0x", "fair mutex 0x", ": capacity 3, 0 in it, 0 waiting to send, 3 to receive\n",
        ": capacity 2, 2 in it, 2 waiting to send, 0 to receive\n", ": capacity 0, 0 in it, closed, 0 waiting to send, 0 to receive\n"})
    cr_assert(said.find(what) != std::string::npos, "%s is not in: %s", what, said.c_str());
}
#endif

// Each is destroyed by its consumer as soon as it is known to be set: however that came to be known.
void consumed_in_each_way(int workers, uint64_t seed) {
  use_chaos(workers, seed);
  constexpr int kPairs = 8, kMany = 4;
  const int kRounds = 400 * times();
  struct Shared {
    std::atomic<FiberFuture*> post[kMany];  // the producer takes it from there
  };
  Shared shared[kPairs] = {};
  std::atomic<FiberRecord*> consumer[kPairs] = {};
  std::atomic<long> consumed{0}, given_up{0}, cancelled{0};
  std::atomic<int> left{kPairs};
  Threads t;
  for (int p = 0; p < kPairs; p++) {
    Shared& s = shared[p];
    auto produce = [&, p] {
      Random random{static_cast<uint64_t>(p)};
      for (int n = 0; n < kRounds * kMany; n++) {
        for (uint32_t i = random(kMany);; i = (i + 1) % kMany) {
          if (FiberFuture* f = s.post[i].exchange(nullptr)) {
            for (uint32_t delay = random(300); delay; delay--) asm volatile("");
            cr_assert(f->set(static_cast<int>(i) + 1));
            break;
          }
          if (random(16) == 0) yield();
        }
      }
    };
    auto consume = [&, p] {
      consumer[p] = self();
      Random random{static_cast<uint64_t>(100 + p)};
      Pieces<FiberFuture> pieces;
      for (int round = 0; round < kRounds; round++) {
        FiberFuture* rest[kMany];
        int number[kMany];
        size_t n = kMany;
        for (int i = 0; i < kMany; i++) {
          rest[i] = pieces.make();
          number[i] = i;
          s.post[i] = rest[i];
        }
        auto done = [&](size_t k, int e) {
          cr_assert_eq(e, number[k] + 1, "%d for %d", e, number[k] + 1);
          pieces.destroy(rest[k]);
          rest[k] = rest[--n];
          number[k] = number[n];
          consumed++;
        };
        while (n) {
          size_t k = random(static_cast<uint32_t>(n));
          int e = 0;
          switch (random(5)) {
            case 0:
              e = rest[k]->wait();
              if (e != ECANCELED) done(k, e);
              break;
            case 1:
              e = rest[k]->waitWithTimeout(random(60'000));
              if (e != ETIMEDOUT && e != ECANCELED) done(k, e);
              break;
            case 2: {
              Called c;
              cr_assert_eq(rest[k]->subscribe(&c), 0);
              for (uint32_t tries = random(4); tries && !c.times; tries--) yield();
              if (rest[k]->unsubscribe(&c)) {
                cr_assert_eq(c.times, 0);
              } else {
                while (!c.times) yield();
                cr_assert_eq(c.times, 1);
                done(k, c.error);
              }
              break;
            }
            default: {
              uint64_t deadline = random(2) ? kForever : now_ns() + random(60'000);
              e = FiberFuture::waitForMultiple(rest, n, deadline);
              if (e) break;
              bool any = false;
              for (size_t i = n; i-- > 0;)
                if (rest[i]->isSet()) {
                  any = true;
                  done(i, rest[i]->error());
                }
              cr_assert(any);
            }
          }
          if (e == ETIMEDOUT) given_up++;
          if (e == ECANCELED) {
            cancelled++;
            forget_cancel();
          }
        }
      }
      left--;
    };
    // Half of the users are foreign threads, in all four pairings.
    p & 1 ? t.kernel(produce) : t.fiber(produce);
    p & 2 ? t.kernel(consume) : t.fiber(consume);
  }
  for (auto& c : consumer)
    while (!c) yield();
  for (Random random{9}; left > 0;) {
    interrupt(consumer[random(kPairs)], kInterruptEnd);
    for (uint32_t delay = random(20000); delay; delay--) asm volatile("");
    yield();
  }
  t.join();
  cr_assert_eq(consumed, long{kPairs} * kRounds * kMany);
  cr_assert(given_up > 0 && cancelled > 0);
  counted(consumed, "futures");
}

Test(fiber_future, chaos_1_worker, .timeout = 240) { consumed_in_each_way(1, 1); }
Test(fiber_future, chaos_2_workers, .timeout = 240) { consumed_in_each_way(2, 2); }
Test(fiber_future, chaos_16_workers, .timeout = 240) { consumed_in_each_way(16, 3); }

}  // namespace
