// SPDX-License-Identifier: MIT
// FiberFuture: it is set once, and each kind of wait sees that. A wait gives up in time. A waiter may destroy the future as soon as it sees
// that it is set.
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
  cr_assert(f.set(-7));  // any int is possible
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
        cr_assert_eq(before, 1);  // the waiter sees what came before set()
      });
      t.any(setter, [&] {
        while (!who) give_way();
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
  cr_assert_eq(f.waitUntil(0), 3);  // a result that is there is returned in any case
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
      cr_assert_eq(g.wait(), 4);  // a result that is there comes first
      cr_assert_eq(FiberFuture::waitForMultiple(both, 2), 0);
      forget_cancel();
      step = 2;
      cr_assert_eq(f.wait(), 9);  // can be waited for again
    });
    while (!who) give_way();
    until_parked(who);
    interrupt(who, kInterruptEnd);
    while (step != 1) give_way();
    until_parked(who);
    interrupt(who, kInterruptEnd);
    while (step != 2) give_way();
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
  while (!who) give_way();
  until_parked(who);
  FiberFuture* both[] = {&g, &f};
  cr_assert_eq(f.wait(), EBUSY);
  cr_assert_eq(f.waitWithTimeout(0), EBUSY);
  cr_assert_eq(f.subscribe(&called), EBUSY);
  cr_assert(!f.unsubscribe(&called));
  cr_assert_eq(FiberFuture::waitForMultiple(both, 2), EBUSY);
  cr_assert_eq(g.waitUntil(0), ETIMEDOUT);  // no waiter was left with it
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
  cr_assert_eq(f.subscribe(&b), 0);  // it is set already, so the callback runs here and now
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
  while (!who) give_way();
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
  for (auto& one : f) cr_assert_eq(one.waitUntil(0), ETIMEDOUT);  // no waiter is left there
  for (int i = 0; i < 5; i++) {
    cr_assert(f[i].set(i));  // set before the wait begins
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
      while (!who) give_way();
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

#ifdef __x86_64__  // elsewhere the emulator's own threads count as foreign ones, which might wake a fiber
// The report of a deadlock names the futures, sequencers, fair mutexes and channels for which the fibers wait.
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
  if (n > 0) kill(child, SIGKILL);  // not by an alarm of the child: that might end its waits, and so there would be no deadlock
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

// Consumers destroy each future as soon as they know that it is set, however they have learnt it.
constexpr int kPairs = 8, kMany = 4;

struct Consumption {
  const int rounds = 400 * times();
  std::atomic<FiberFuture*> post[kPairs][kMany] = {};  // the producer takes a future from there
  std::atomic<FiberRecord*> consumer[kPairs] = {};
  std::atomic<long> consumed{0}, given_up{0}, cancelled{0};
  std::atomic<int> left{kPairs};
};

void produce(Consumption& c, int pair) {
  Random random{static_cast<uint64_t>(pair)};
  for (int n = 0; n < c.rounds * kMany; n++) {
    for (uint32_t i = random(kMany);; i = (i + 1) % kMany) {
      if (FiberFuture* f = c.post[pair][i].exchange(nullptr)) {
        for (uint32_t delay = random(300); delay; delay--) asm volatile("");
        cr_assert(f->set(static_cast<int>(i) + 1));
        break;
      }
      if (random(16) == 0) give_way();
    }
  }
}

// One consumer, and the futures of a round that it has not destroyed yet.
class Consumer {
 public:
  Consumer(Consumption& c, int pair) : c_(c), pair_(pair), random_{static_cast<uint64_t>(100 + pair)} {}

  void run() {
    c_.consumer[pair_] = self();
    for (int round = 0; round < c_.rounds; round++) {
      post_all();
      while (n_) {
        int e = wait_somehow(random_(static_cast<uint32_t>(n_)));
        if (e == ETIMEDOUT) c_.given_up++;
        if (e == ECANCELED) {
          c_.cancelled++;
          forget_cancel();
        }
      }
    }
    c_.left--;
  }

 private:
  void post_all() {
    n_ = kMany;
    for (int i = 0; i < kMany; i++) {
      rest_[i] = pieces_.make();
      number_[i] = i;
      c_.post[pair_][i] = rest_[i];
    }
  }
  void done(size_t k, int e) {
    cr_assert_eq(e, number_[k] + 1, "%d for %d", e, number_[k] + 1);
    pieces_.destroy(rest_[k]);
    rest_[k] = rest_[--n_];
    number_[k] = number_[n_];
    c_.consumed++;
  }

  // Waits for the k-th future or for any, in one of the ways. Returns 0, the future's error, ETIMEDOUT or ECANCELED.
  int wait_somehow(size_t k) {
    int e = 0;
    switch (random_(5)) {
      case 0:
        e = rest_[k]->wait();
        if (e != ECANCELED) done(k, e);
        return e;
      case 1:
        e = rest_[k]->waitWithTimeout(random_(60'000));
        if (e != ETIMEDOUT && e != ECANCELED) done(k, e);
        return e;
      case 2: subscribe_for_a_while(k); return 0;
      default: return wait_for_any();
    }
  }
  void subscribe_for_a_while(size_t k) {
    Called called;
    cr_assert_eq(rest_[k]->subscribe(&called), 0);
    for (uint32_t tries = random_(4); tries && !called.times; tries--) give_way();
    if (rest_[k]->unsubscribe(&called)) {
      cr_assert_eq(called.times, 0);
      return;
    }
    while (!called.times) give_way();
    cr_assert_eq(called.times, 1);
    done(k, called.error);
  }
  int wait_for_any() {
    uint64_t deadline = random_(2) ? kForever : now_ns() + random_(60'000);
    int e = FiberFuture::waitForMultiple(rest_, n_, deadline);
    if (e) return e;
    bool any = false;
    for (size_t i = n_; i-- > 0;)
      if (rest_[i]->isSet()) {
        any = true;
        done(i, rest_[i]->error());
      }
    cr_assert(any);
    return 0;
  }

  Consumption& c_;
  int pair_;
  Random random_;
  Pieces<FiberFuture> pieces_;
  FiberFuture* rest_[kMany];
  int number_[kMany];
  size_t n_ = 0;
};

void consumed_in_each_way(int workers, uint64_t seed) {
  use_chaos(workers, seed);
  Consumption c;
  Threads t;
  for (int p = 0; p < kPairs; p++) {
    auto producer = [&, p] { produce(c, p); };
    auto consumer = [&, p] { Consumer(c, p).run(); };
    // Half of the users are foreign threads, in all four pairings.
    p & 1 ? t.kernel(producer) : t.fiber(producer);
    p & 2 ? t.kernel(consumer) : t.fiber(consumer);
  }
  for (auto& one : c.consumer)
    while (!one) give_way();
  for (Random random{9}; c.left > 0;) {
    interrupt(c.consumer[random(kPairs)], kInterruptEnd);
    for (uint32_t delay = random(20000); delay; delay--) asm volatile("");
    give_way();
  }
  t.join();
  cr_assert_eq(c.consumed, long{kPairs} * c.rounds * kMany);
  cr_assert(c.given_up > 0 && c.cancelled > 0);
  counted(c.consumed, "futures");
}

Test(fiber_future, chaos_1_worker, .timeout = 240) { consumed_in_each_way(1, 1); }
Test(fiber_future, chaos_2_workers, .timeout = 240) { consumed_in_each_way(2, 2); }
Test(fiber_future, chaos_16_workers, .timeout = 240) { consumed_in_each_way(16, 3); }

}  // namespace
