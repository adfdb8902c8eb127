// SPDX-License-Identifier: MIT
// CancelToken: which waits it ends, and from when on it no longer does.
#include "fiberthread/cancel_token.h"

#include "tests/test.h"

#include <errno.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "sched/worker.h"
#include "fiberthread/fiber.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

constexpr uint64_t kLong = 60'000 * kMs;

Test(cancel_token, ends_the_waits_of_all_that_use_it) {
  CancelToken token;
  std::atomic<int> waiting{0}, ended{0};
  Threads t;
  for (int i = 0; i < 40; i++) {
    auto body = [&] {
      CancelToken::Scope scope(token);
      waiting++;
      cr_assert_eq(Fiber::sleep(kLong), ECANCELED);
      cr_assert(token.cancelled());
      cr_assert(Fiber::cancelled());
      cr_assert_eq(Fiber::yield(), ECANCELED);
      ended++;
    };
    if (i % 4 == 0) t.kernel(body);
    else t.fiber(body);
  }
  while (waiting < 40) Fiber::sleep(kMs);
  Fiber::sleep(kMs);
  cr_assert_eq(ended, 0);
  cr_assert_not(token.cancelled());
  token.cancel();
  token.cancel();
  t.join();
  cr_assert_eq(ended, 40);
}

Test(cancel_token, ends_a_parked_read) {
  if (!sched_start()) return;  // without fibers, read() waits in the kernel
  CancelToken token;
  int ends[2];
  cr_assert_eq(pipe(ends), 0);
  char c;
  Fiber f = Fiber::spawn([&] {
    CancelToken::Scope scope(token);
    cr_assert_eq(read(ends[0], &c, 1), -1);
    cr_assert_eq(errno, ECANCELED);
  });
  Fiber::sleep(2 * kMs);
  token.cancel();
  f.join();
  // The pipe has lost nothing.
  cr_assert_eq(write(ends[1], "x", 1), 1);
  cr_assert_eq(read(ends[0], &c, 1), 1);
}

Test(cancel_token, a_scope_begins_and_ends) {
  CancelToken token;
  token.cancel();
  Fiber::spawn([&] {
    cr_assert_not(Fiber::cancelled());
    cr_assert_eq(Fiber::sleep(1000), 0);
    {
      CancelToken::Scope scope(token);
      cr_assert(Fiber::cancelled());  // checked without waiting
      cr_assert_eq(Fiber::sleep(kLong), ECANCELED);
    }
    cr_assert_not(Fiber::cancelled());
    cr_assert_eq(Fiber::sleep(1000), 0);
    cr_assert_eq(Fiber::yield_timeout(1000), ETIMEDOUT);
  }).join();
}

Test(cancel_token, scopes_nest) {
  CancelToken a, b;
  Fiber::spawn([&] {
    CancelToken::Scope one(a);
    {
      CancelToken::Scope two(b), again(b);
      b.cancel();
      cr_assert(Fiber::cancelled());
      a.cancel();
    }
    cr_assert(Fiber::cancelled());  // cancelled by a
  }).join();
  // A token does not take back a fiber's own cancellation.
  CancelToken c;
  c.cancel();
  Fiber::spawn([&] {
    Fiber::self().cancel();
    {
      CancelToken::Scope scope(c);
    }
    cr_assert(Fiber::cancelled());
    cr_assert_eq(Fiber::sleep(kLong), ECANCELED);
  }).join();
}

Test(cancel_token, children_are_cancelled_with_their_parents_and_by_themselves) {
  CancelToken root;
  CancelToken left(&root), right(&root), leaf(&left);
  std::atomic<int> waiting{0};
  std::atomic<bool> by_leaf{false}, by_right{false};
  Fiber f = Fiber::spawn([&] {
    CancelToken::Scope scope(leaf);
    waiting++;
    by_leaf = Fiber::sleep(kLong) == ECANCELED;
  });
  Fiber g = Fiber::spawn([&] {
    CancelToken::Scope scope(right);
    waiting++;
    by_right = Fiber::sleep(kLong) == ECANCELED;
  });
  while (waiting < 2) Fiber::sleep(kMs);
  left.cancel();
  f.join();
  cr_assert(by_leaf && leaf.cancelled() && left.cancelled());
  cr_assert(!by_right && !root.cancelled() && !right.cancelled());
  root.cancel();
  g.join();
  cr_assert(by_right && right.cancelled());
  CancelToken late(&root), later(&late);
  cr_assert(late.cancelled() && later.cancelled());
}

Test(cancel_token, while_it_is_not_cancellable_no_token_ends_its_waits) {
  CancelToken token;
  Fiber::spawn([&] {
    CancelToken::Scope scope(token);
    Fiber::set_cancellable(false);
    token.cancel();
    cr_assert_not(Fiber::cancelled());
    cr_assert_eq(Fiber::sleep(1000), 0);
    Fiber::set_cancellable(true);
    cr_assert(Fiber::cancelled());
  }).join();
}

// Tokens come and go while others are cancelled. Each fiber that began ends, and its waits end as they should.
Test(cancel_token, stress) {
  uint64_t end = now_ns() + 200 * kMs;
  std::atomic<uint64_t> rounds{0};
  Threads t;
  for (int u = 0; u < 4; u++) {
    auto user = [&, u] {
      Random random{static_cast<uint64_t>(u) + 11};
      do {
        CancelToken root;
        auto child = std::make_unique<CancelToken>(&root);
        std::atomic<int> ended{0};
        std::vector<Fiber> fibers;
        for (int i = 0; i < 6; i++)
          fibers.push_back(Fiber::spawn([&, i] {
            {
              CancelToken::Scope outer(i % 2 ? root : *child);
              CancelToken own(&root);
              CancelToken::Scope inner(own);
              while (Fiber::sleep(100'000) == 0) {
              }
              cr_assert(i % 2 ? root.cancelled() : child->cancelled() || own.cancelled());
            }
            cr_assert_not(Fiber::cancelled());
            ended++;
          }));
        if (random(2)) Fiber::sleep(random(100'000));
        if (random(2)) child->cancel();
        root.cancel();
        for (Fiber& f : fibers) cr_assert_eq(f.join(), 0);
        cr_assert_eq(ended, 6);
        child.reset();
        rounds++;
      } while (now_ns() < end);
    };
    if (u % 2) t.kernel(user);
    else t.fiber(user);
  }
  t.join();
  cr_assert_geq(rounds, 4u);
}

}  // namespace
