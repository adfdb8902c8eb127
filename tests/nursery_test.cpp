// SPDX-License-Identifier: MIT
// Nursery: what each sentence of nursery.h says, with owners that are fibers and owners that are kernel threads.
#include "fiberthread/nursery.h"

#include "tests/test.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <memory>
#include <vector>

#include "sched/chaos.h"
#include "sched/worker.h"
#include "fiberthread/channel.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

template <class F>
void as_both(F f) {
  Threads t;
  t.fiber(f);
  t.join();
  t.kernel(f);
}

constexpr uint64_t kLong = 100'000'000'000;  // only the test's time limit ends it
int sleeps_long() { return fiberthread_sleep(kLong); }

Test(nursery, children_end_before_it_does) {
  as_both([] {
    std::atomic<int> ended{0};
    {
      Nursery n;
      for (int i = 0; i < 50; i++)
        cr_assert_eq(n.spawn([&, i] {
          if (i % 2) fiberthread_sleep(kMs);
          ended++;
        }),
                     0);
    }
    cr_assert_eq(ended, 50);
    Nursery n;
    cr_assert_eq(n.wait(), 0);  // without any child
    cr_assert_eq(n.spawn([&] { ended++; }), 0);
    cr_assert_eq(n.wait(), 0);
    cr_assert_eq(ended, 51);
    cr_assert_eq(n.children(), 0u);
    cr_assert_eq(n.spawn([&] { ended++; }), 0);  // the nursery is used again
    cr_assert_eq(n.wait(), 0);
    cr_assert_eq(ended, 52);
  });
}

Test(nursery, the_first_error_ends_the_others) {
  as_both([] {
    Nursery n;
    std::atomic<int> ended{0};
    for (int i = 0; i < 20; i++)
      n.spawn([&] {
        int e = sleeps_long();
        cr_assert_eq(e, ECANCELED);
        ended++;
        return e;
      });
    cr_assert_not(n.cancelled());
    n.spawn([&] { return 77; });
    cr_assert_eq(n.wait(), 77);
    cr_assert_eq(ended, 20);
    cr_assert(n.cancelled());
    cr_assert_eq(n.error(), 77);
    bool ran = false;
    cr_assert_eq(n.spawn([&] { ran = true; }), ECANCELED);
    cr_assert_eq(n.wait(), 77);
    cr_assert_not(ran);
  });
}

Test(nursery, later_errors_are_not_the_first) {
  Nursery n;
  n.spawn([&] {
    sleeps_long();
    return 5;
  });
  n.spawn([] { return 4; });
  cr_assert_eq(n.wait(), 4);
}

Test(nursery, a_childs_own_ECANCELED_is_an_error) {
  Nursery n;
  n.spawn([] { return sleeps_long(); });
  n.spawn([] { return ECANCELED; });
  cr_assert_eq(n.wait(), ECANCELED);
  cr_assert_eq(n.error(), ECANCELED);
}

Test(nursery, cancelled_from_outside) {
  as_both([] {
    Nursery n;
    for (int i = 0; i < 10; i++) n.spawn(sleeps_long);
    cr_assert_eq(n.children(), 10u);
    Threads t;
    t.kernel([&] {
      usleep(2000);
      n.cancel();
      n.cancel();
    });
    cr_assert_eq(n.wait(), ECANCELED);
    t.join();
    cr_assert_eq(n.error(), 0);
    Nursery m;
    m.spawn(sleeps_long);
    m.cancel(9);
    m.cancel(8);
    cr_assert_eq(m.wait(), 9);
  });
}

Test(nursery, a_cancelled_owner_cancels_and_waits_on) {
  std::atomic<int> ended{0};
  struct Shared {
    std::atomic<int>* ended;
    std::atomic<bool> spawned{false};
    bool cancellable = false;
  } shared{&ended};
  fiberthread_t owner;
  cr_assert_eq(fiberthread_spawn(
                   &owner, nullptr,
                   [](void* p) -> void* {
                     auto* s = static_cast<Shared*>(p);
                     Nursery n;
                     for (int i = 0; i < 5; i++)
                       n.spawn([s] {
                         sleeps_long();
                         fiberthread_set_cancellable(0);
                         fiberthread_sleep(2 * kMs);  // the child's end takes some time
                         (*s->ended)++;
                       });
                     s->spawned = true;
                     int e = n.wait();
                     cr_assert_eq(*s->ended, 5);
                     s->cancellable = fiberthread_cancelled();  // cancellable as before the wait
                     return reinterpret_cast<void*>(static_cast<intptr_t>(e));
                   },
                   &shared),
               0);
  while (!shared.spawned) give_way();
  fiberthread_cancel(owner);
  void* result;
  cr_assert_eq(fiberthread_join(owner, &result), 0);
  cr_assert_eq(reinterpret_cast<intptr_t>(result), ECANCELED);
  cr_assert(shared.cancellable);
}

Test(nursery, nursery_of_a_child_is_cancelled_with_the_child) {
  as_both([] {
    std::atomic<int> ended{0}, begun{0};
    Nursery outer;
    for (int i = 0; i < 3; i++)
      outer.spawn([&] {
        Nursery inner;
        for (int k = 0; k < 3; k++)
          inner.spawn([&] {
            Nursery innermost;
            innermost.spawn([&] {
              begun++;
              int e = sleeps_long();
              ended++;
              return e;
            });
            return innermost.wait();
          });
        return inner.wait();
      });
    while (begun < 9) give_way();
    outer.spawn([] { return 3; });
    cr_assert_eq(outer.wait(), 3);
    cr_assert_eq(ended, 9);
  });
}

Test(nursery, is_cancelled_with_its_parent) {
  as_both([] {
    Nursery outer;
    {
      Nursery gone(&outer);
    }
    Nursery a(&outer), b(&outer), below(&a);
    for (Nursery* n : {&a, &b, &below}) n->spawn(sleeps_long);
    outer.spawn([] { return 3; });
    for (Nursery* n : {&a, &b, &below}) cr_assert_eq(n->wait(), ECANCELED);
    cr_assert_eq(outer.wait(), 3);
    Nursery late(&outer);
    cr_assert_eq(late.spawn([] {}), ECANCELED);
    // A parent is not cancelled with its child.
    Nursery parent, child(&parent);
    child.cancel(6);
    cr_assert_not(parent.cancelled());
  });
}

Test(nursery, children_spawn_children) {
  as_both([] {
    struct Tree {
      Nursery n;
      std::atomic<int> nodes{0};
      void grow(int depth) {
        nodes++;
        for (int i = 0; depth && i < 3; i++) cr_assert_eq(n.spawn([this, depth] { grow(depth - 1); }), 0);
      }
    } tree;
    tree.n.spawn([&] { tree.grow(5); });
    cr_assert_eq(tree.n.wait(), 0);
    cr_assert_eq(tree.nodes, 364);
  });
}

// However a child ends, its callable is destroyed, and the nursery ends.
struct Counted {
  static std::atomic<int> alive;
  Counted() { alive++; }
  Counted(const Counted&) { alive++; }
  ~Counted() { alive--; }
};
std::atomic<int> Counted::alive{0};

Test(nursery, children_that_are_ended_by_force) {
  {
    Counted counted;
    Nursery n;
    n.spawn([counted] { sleeps_long(); });
    n.spawn([counted] { pthread_exit(nullptr); });
    cr_assert_eq(n.wait(), ECANCELED);
    cr_assert_eq(n.children(), 0u);
    Nursery m;
    m.spawn([counted] { sleeps_long(); });
    m.spawn([counted] {
      pthread_cancel(pthread_self());
      pthread_testcancel();
    });
    cr_assert_eq(m.wait(), ECANCELED);
    cr_assert_eq(m.spawn([counted] {}), ECANCELED);
    cr_assert_eq(Counted::alive, 1);
  }
  cr_assert_eq(Counted::alive, 0);
}

Test(nursery, options) {
  Nursery n;
  fiberthread_options_t o{};
  o.name = "child";
  cr_assert_eq(n.spawn(
                   [] {
                     char name[16];
                     fiberthread_get_name(fiberthread_self(), name, sizeof name);
                     cr_assert_str_eq(name, "child");
                   },
                   &o),
               0);
  o.detached = 1;
  cr_assert_eq(n.spawn([] {}, &o), EINVAL);
  o.detached = 0;
  o.name = "a name that is too long";
  cr_assert_eq(n.spawn([] {}, &o), ERANGE);
  cr_assert_eq(n.wait(), 0);
}

// A child is cancelled at any moment of a rendezvous. Either it has sent its value and another child has it, or it still has the value.
void rendezvous(uint64_t seed) {
  chaos_seed = seed;
  for (size_t room : {0, 3})
    for (uint32_t round = 0; round < 150; round++) {
      std::atomic<long> sent{0}, received{0}, ended{0};
      auto [tx, rx] = Channel<int>::make(room);
      {
        Nursery n;
        for (int i = 0; i < 3; i++) {
          n.spawn([&, tx = tx] {
            int e;
            while ((e = tx.send(1)) == 0) sent++;
            cr_assert_eq(e, ECANCELED);
            ended++;
            return e;
          });
          n.spawn([&, rx = rx, i] {
            int v, e;
            while ((e = i ? rx.receive(v) : rx.receive_for(v, 50'000)) == 0 || e == ETIMEDOUT) {
              received += e == 0;
              if (fiberthread_cancelled()) break;  // a call that need not wait is not ended
            }
            ended++;
            return ECANCELED;
          });
        }
        fiberthread_sleep(round * 1000);
        n.cancel();
      }
      cr_assert_eq(ended, 6);
      cr_assert_eq(sent, received + static_cast<long>(rx.size()));
    }
}
Test(nursery, a_rendezvous_is_cancelled_before_it_or_not_at_all, .timeout = 240) { rendezvous(0), rendezvous(9); }

Test(nursery, the_c_names) {
  as_both([] {
    fiberthread_nursery_t n, nested;
    fiberthread_nursery_init(&n, nullptr);
    fiberthread_nursery_init(&nested, &n);
    std::atomic<int> ran{0};
    auto count = [](void* p) -> int {
      ++*static_cast<std::atomic<int>*>(p);
      return 0;
    };
    for (int i = 0; i < 5; i++) cr_assert_eq(fiberthread_nursery_spawn(&n, nullptr, count, &ran), 0);
    cr_assert_eq(fiberthread_nursery_wait(&n), 0);
    cr_assert_eq(ran, 5);
    fiberthread_nursery_spawn(&nested, nullptr, [](void*) -> int { return sleeps_long(); }, nullptr);
    fiberthread_nursery_cancel(&n, 8);
    cr_assert_eq(fiberthread_nursery_spawn(&n, nullptr, count, &ran), ECANCELED);
    cr_assert_eq(fiberthread_nursery_end(&nested), ECANCELED);
    cr_assert_eq(fiberthread_nursery_end(&n), 8);
    cr_assert_eq(ran, 5);
  });
}

// A nursery that lives long does not keep the children that have ended.
Test(nursery, ended_children_are_given_back) {
  Nursery n;
  fiberthread_statistics_t before, after;
  fiberthread_get_statistics(&before);
  for (int i = 0; i < 2000; i++) {
    cr_assert_eq(n.spawn([] {}), 0);
    while (n.children() > 4) give_way();
  }
  fiberthread_get_statistics(&after);
  cr_assert_eq(after.spawned - before.spawned, 2000u);
  cr_assert_gt(after.recycled - before.recycled, 1800u);
}

// Trees of nurseries, in which nodes fail, cancel or are cancelled at any moment. Everything ends once, and nothing is lost.
void stress(unsigned workers, uint64_t seed) {
  options.workers = workers;
  chaos_seed = seed;
  std::atomic<long> spawned{0}, ended{0};
  struct Tree {
    std::atomic<long>&spawned, &ended;
    int node(Random random, int depth) {
      Nursery n;
      int children = depth ? static_cast<int>(random(4)) : 0;
      for (int i = 0; i < children; i++) {
        spawned++;
        Random own{random.state + random(1000000)};
        int e = n.spawn([this, own, depth] {
          int r = node(own, depth - 1);
          ended++;
          return r;
        });
        if (e) {
          cr_assert_eq(e, ECANCELED);
          spawned--;
        }
      }
      switch (random(12)) {
        case 0: return 40 + depth;
        case 1: n.cancel(); break;
        case 2: n.cancel(50); break;
        case 3: fiberthread_sleep(random(100000)); break;
        case 4: give_way(); break;
        case 5: return fiberthread_sleep(200000);
        default: break;
      }
      return n.wait();
    }
  };
  {
    Threads t;
    for (uint64_t u = 0; u < 6; u++) {
      auto user = [&, u] {
        for (uint64_t r = 0; r < 40; r++) {
          Tree tree{spawned, ended};
          Nursery top;
          Random random{u * 1000 + r + seed};
          top.spawn([&] { return tree.node(random, 4); });
          if (r % 4 == 0) top.cancel();
          top.wait();
        }
      };
      u % 2 ? t.kernel(user) : t.fiber(user);
    }
  }
  cr_assert_eq(spawned, ended);
}
Test(nursery, stress_on_1_worker, .timeout = 240) { stress(1, 0), stress(1, 3); }
Test(nursery, stress_on_2_workers, .timeout = 240) { stress(2, 0), stress(2, 4); }
Test(nursery, stress_on_16_workers, .timeout = 240) { stress(16, 0), stress(16, 5); }

Test(nursery, takes_no_detached_ones) {
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
  fiberthread_options_t detached{}, by_attr{};
  detached.detached = true;
  by_attr.attr = &a;
  Nursery n;
  cr_assert_eq(n.spawn([] { return 0; }, &detached), EINVAL);
  cr_assert_eq(n.spawn([] { return 0; }, &by_attr), EINVAL);
  cr_assert_eq(n.wait(), 0);
  pthread_attr_destroy(&a);
}

}  // namespace
