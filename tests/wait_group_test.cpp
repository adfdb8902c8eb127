// SPDX-License-Identifier: MIT
// WaitGroup, Latch and Barrier: waiters go on when all threads have come, and not before.
// alone: sync
#include "fiberthread/wait_group.h"

#include "tests/test.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <initializer_list>

#include "tests/single_steps.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(wait_group, waits_until_the_count_is_0) {
  WaitGroup g;
  cr_assert_eq(g.wait(), 0);
  cr_assert_eq(g.wait_until(0), 0);
  g.add(2);
  cr_assert_eq(g.count(), 2u);
  std::atomic<int> gone_on{0};
  Threads t;
  for (int i = 0; i < 6; i++) {
    auto body = [&] {
      cr_assert_eq(g.wait(), 0);
      gone_on++;
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
  until_queued(&g, 6);
  g.done();
  g.add(3);
  g.add(-3);
  for (int i = 0; i < 50; i++) give_way();
  cr_assert_eq(gone_on, 0);
  g.done();
  t.join();
  cr_assert_eq(gone_on, 6);
  cr_assert_eq(g.count(), 0u);
}

// The count is 0 for a moment only. A waiter has seen that all the same.
Test(wait_group, may_be_used_again_at_once, .timeout = 120) {
  const int kRounds = chaos_rounds(600);
  WaitGroup g, ready;
  std::atomic<int> round{0};
  Threads t;
  for (int i = 0; i < 4; i++) {
    auto body = [&] {
      for (int r = 0; r < kRounds; r++) {
        while (round < r) give_way();
        if (r % 5 == 1)
          while (int e = g.wait_for(10'000)) cr_assert_eq(e, ETIMEDOUT);
        else cr_assert_eq(g.wait(), 0);
        ready.done();
      }
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
  g.add();
  for (int r = 0; r < kRounds; r++) {
    ready.add(4);
    round = r;
    if (r % 3) give_way();
    g.done();
    if (r % 2) cr_assert_eq(ready.wait(), 0);  // otherwise some may come when the count is not 0 any more
    else
      while (ready.count()) give_way();
    g.add();
  }
  t.join();
}

Test(wait_group, gives_up_in_time_but_not_early) {
  WaitGroup g(1);
  for (bool kernel : {false, true}) {
    Threads t;
    auto body = [&] {
      for (uint64_t ms : {0, 1, 15}) {
        uint64_t deadline = now_ns() + ms * kMs;
        cr_assert_eq(g.wait_until(deadline), ETIMEDOUT);
        cr_assert(now_ns() >= deadline);
        cr_assert_eq(g.wait_for(ms * kMs), ETIMEDOUT);
        cr_assert(now_ns() >= deadline + ms * kMs);
      }
    };
    kernel ? t.kernel(body) : t.fiber(body);
  }
  cr_assert_eq(queued(&g), 0u);
  g.done();
  cr_assert_eq(g.wait(), 0);
}

void cancel_when_queued(const void* object, std::atomic<FiberRecord*>& waits, size_t n) {
  until_queued(object, n);
  interrupt(waits, kInterruptEnd);
}

Test(wait_group, cancellation_ends_a_wait) {
  WaitGroup g(1);
  std::atomic<FiberRecord*> waits{nullptr};
  Threads t;
  t.fiber([&] {
    waits = self();
    cr_assert_eq(g.wait(), ECANCELED);
    self()->run.interrupts.fetch_and(~uint32_t{kInterruptEnd});
  });
  cancel_when_queued(&g, waits, 1);
  t.join();
  g.done();
}

Test(wait_group, may_be_destroyed_when_a_wait_has_returned, .timeout = 120) {
  for (int round = 0; round < chaos_rounds(2000); round++) {
    auto* g = new WaitGroup(2);
    Threads t;
    auto done = [g] { g->done(); };
    t.fiber(done);
    round % 8 == 0 ? t.kernel(done) : t.fiber(done);
    if (round % 3) give_way();
    cr_assert_eq(g->wait(), 0);
    g->~WaitGroup();
    memset(static_cast<void*>(g), 0x5a, sizeof *g);
    operator delete(g);
  }
}

Test(latch, counts_down_once) {
  Latch l(5);
  cr_assert(!l.try_wait());
  cr_assert_eq(l.wait_for(0), ETIMEDOUT);
  l.count_down();
  l.count_down(2);
  Threads t;
  t.fiber([&] { cr_assert_eq(l.arrive_and_wait(), 0); });
  t.kernel([&] { cr_assert_eq(l.arrive_and_wait(), 0); });
  cr_assert_eq(l.wait(), 0);
  cr_assert(l.try_wait());
  cr_assert_eq(l.wait_until(0), 0);
}

// Each latch opens just when the last thread comes, however the others wait. A waiter destroys it.
Test(latch, all_waiters_go_on, .timeout = 120) {
  constexpr int kThreads = 8, kRounds = 150;
  Latch* latch = nullptr;
  std::atomic<int> came{0}, left{0};
  std::atomic<long> cancelled{0};
  std::atomic<FiberRecord*> users[kThreads] = {};
  Rounds rounds(kThreads);
  Threads t;
  for (int i = 0; i < kThreads; i++) {
    auto body = [&, i] {
      Random random{static_cast<uint64_t>(i)};
      users[i] = self();
      for (int r = 0; r < kRounds; r++) {
        if (i == 0) {
          latch = new Latch(kThreads);
          came = left = 0;
        }
        rounds.meet();
        for (uint32_t delay = random(300); delay; delay--) asm volatile("");
        came++;
        int e = ETIMEDOUT;
        if (random(2)) e = latch->arrive_and_wait();
        else latch->count_down();
        if (random(8) == 0) interrupt(users[random(kThreads)], kInterruptEnd);
        while (e) {
          cr_assert(e == ECANCELED || e == ETIMEDOUT);
          if (e == ECANCELED) {
            cancelled++;
            forget_cancel();
          }
          e = random(2) ? latch->wait() : latch->wait_for(random(30'000));
        }
        cr_assert_eq(came, kThreads);
        cr_assert(latch->try_wait());
        if (++left == kThreads) {
          latch->~Latch();
          memset(static_cast<void*>(latch), 0x5a, sizeof *latch);
          operator delete(latch);
        }
        rounds.meet();
        forget_cancel();
      }
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
  t.join();
  cr_assert_gt(cancelled, 0);
}

Test(barrier, lets_all_on_together_phase_after_phase, .timeout = 120) {
  constexpr int kThreads = 8;
  const int kPhases = chaos_rounds(400);
  static std::atomic<int> arrived, completed;
  arrived = completed = 0;
  int calls = 0;  // no other thread runs the completion, so this needs no lock
  auto completion = [](void* n) {
    cr_assert_eq(arrived, kThreads * (completed + 1));
    give_way();  // a completion may wait
    completed++;
    ++*static_cast<int*>(n);
  };
  Barrier b(kThreads, completion, &calls);
  Threads t;
  for (int i = 0; i < kThreads; i++) {
    auto body = [&, i] {
      for (int p = 0; p < kPhases; p++) {
        arrived++;
        if (i == 3 && p % 2) {
          Barrier::Phase phase = b.arrive();
          give_way();
          cr_assert_eq(b.wait(phase), 0);
        } else {
          cr_assert_eq(b.arrive_and_wait(), 0);
        }
        cr_assert(completed >= p + 1 && completed <= p + 2);
        cr_assert(arrived >= kThreads * (p + 1));
      }
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
  t.join();
  cr_assert_eq(completed, kPhases);
  cr_assert_eq(calls, kPhases);
}

Test(barrier, dropped_threads_are_not_waited_for) {
  Barrier b(4);
  Threads t;
  for (int i = 0; i < 4; i++) {
    auto body = [&, i] {
      for (int p = 0; p < i; p++) cr_assert_eq(b.arrive_and_wait(), 0);
      b.arrive_and_drop();
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
}

Test(barrier, giving_up_does_not_count_as_arrival) {
  Barrier b(2);
  cr_assert_eq(b.arrive_and_wait_for(kMs), ETIMEDOUT);
  cr_assert_eq(b.arrive_and_wait_until(0), ETIMEDOUT);
  std::atomic<FiberRecord*> waits{nullptr};
  Threads t;
  t.fiber([&] {
    waits = self();
    cr_assert_eq(b.arrive_and_wait(), ECANCELED);
    self()->run.interrupts.fetch_and(~uint32_t{kInterruptEnd});
  });
  cancel_when_queued(&b, waits, 1);
  t.join();
  Barrier::Phase phase = b.arrive();
  cr_assert_eq(b.wait_until(phase, 0), ETIMEDOUT);  // but this thread has arrived
  t.fiber([&] { cr_assert_eq(b.arrive_and_wait(), 0); });
  cr_assert_eq(b.wait(phase), 0);
  cr_assert_eq(b.wait(phase), 0);  // the phase is over
}

// A waiter of the last phase touches nothing after it, however near its timeout was. The first thread to return destroys the barrier.
Test(barrier, may_be_destroyed_when_a_wait_has_returned, .timeout = 120) {
  constexpr int kThreads = 4, kRounds = 300;
  union Place {
    Place() {}
    ~Place() {}
    Barrier b;
  };
  Pieces<Place> pieces;
  Place* place = nullptr;
  std::atomic<int> destroyed{0};
  Rounds rounds(kThreads);
  Threads t;
  for (int i = 0; i < kThreads; i++) {
    auto body = [&, i] {
      Random random{static_cast<uint64_t>(i)};
      for (int r = 1; r <= kRounds; r++) {
        if (i == 0) new (&(place = pieces.make())->b) Barrier(kThreads);
        rounds.meet();
        Barrier& b = place->b;
        while (int e = b.arrive_and_wait_for(random(15'000))) cr_assert_eq(e, ETIMEDOUT);
        int before = r - 1;
        if (destroyed.compare_exchange_strong(before, r)) {
          b.~Barrier();
          pieces.destroy(place);
        }
        rounds.meet();
      }
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
}

#if defined(__x86_64__)
// The last thread to come returns at once, and may put another barrier in the same place. The other thread may be anywhere on its way into
// its wait.
Test(barrier, may_be_destroyed_while_another_is_about_to_wait, .timeout = 120) {
  if (chaos_seed) return;  // its delays look like the end of the call
  int gone = 0;
  for (int step = 0;; step++) {
    alignas(Barrier) unsigned char memory[sizeof(Barrier)];
    auto* b = new (memory) Barrier(2);
    int e = -1;
    Threads t;
    bool all = !steps::run(t, step, [&] { e = b->arrive_and_wait(); });
    if (b->arrive_and_wait_for(0) == 0) {  // it has arrived
      gone++;
      b->~Barrier();
      new (memory) Barrier(2);
      steps::stage = steps::kGoOn;
    } else {
      steps::stage = steps::kGoOn;
      cr_assert_eq(b->arrive_and_wait(), 0);
    }
    t.join();
    cr_assert_eq(e, 0);
    if (all) break;
  }
  cr_assert_gt(gone, 0);
}

#ifndef ALONE
// The same for a pthread_barrier_t. The first thread to return, the serial one or not, destroys and unmaps it.
constexpr size_t kPage = 4096;
pthread_barrier_t* map_barrier(unsigned n) {
  auto* b = static_cast<pthread_barrier_t*>(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  cr_assert_eq(pthread_barrier_init(b, nullptr, n), 0);
  return b;
}
void unmap_barrier(pthread_barrier_t* b) {
  cr_assert_eq(pthread_barrier_destroy(b), 0);
  munmap(b, kPage);
}

Test(barrier, pthread_s_may_be_destroyed_while_another_is_about_to_wait, .timeout = 120) {
  if (chaos_seed) return;
  int gone = 0;
  for (int step = 0;; step++) {
    pthread_barrier_t* b = map_barrier(2);
    int e = -1, mine;
    Threads t;
    bool all = !steps::run(t, step, [&] { e = pthread_barrier_wait(b); });
    bool arrived = *reinterpret_cast<volatile uint32_t*>(b) == 1;  // shim/barrier.cpp
    if (!arrived) steps::stage = steps::kGoOn;
    mine = pthread_barrier_wait(b);
    if (arrived) {
      cr_assert_eq(mine, PTHREAD_BARRIER_SERIAL_THREAD);
      unmap_barrier(b);
      steps::stage = steps::kGoOn;
      gone++;
    }
    t.join();
    cr_assert_eq(e + mine, PTHREAD_BARRIER_SERIAL_THREAD);  // and 0
    if (!arrived) unmap_barrier(b);
    if (all) break;
  }
  cr_assert_gt(gone, 0);
}

// The waiters wait in the kernel. So the thread that wakes them holds no lock that is needed here.
Test(barrier, pthread_s_may_be_destroyed_while_the_serial_one_is_on_its_way_out, .timeout = 120) {
  if (chaos_seed) return;
  static std::atomic<int> returned, waits[2];
  static pthread_barrier_t* b;
  int gone = 0;
  for (int step = 0;; step++) {
    b = map_barrier(3);
    returned = 0;
    int e = -1;
    Threads t;
    for (auto& w : waits) {
      w = 0;
      t.kernel([&w] {
        (void)self();
        w = static_cast<int>(raw_syscall(SYS_gettid));
        cr_assert_eq(pthread_barrier_wait(b), 0);
        if (returned++ == 0) unmap_barrier(b);
        w = 0;
      });
    }
    until_queued(b, 2);
    bool all = !steps::run(t, step, [&] { e = pthread_barrier_wait(b); }, true);
    for (auto& w : waits)
      while (!all && w && !steps::asleep(w)) cpu_relax();
    gone += !all && returned;
    steps::stage = steps::kGoOn;
    t.join();
    cr_assert_eq(e, PTHREAD_BARRIER_SERIAL_THREAD);
    if (all) break;
  }
  cr_assert_gt(gone, 0);
}
#endif
#endif

// Timeouts come at every point of a phase. Even so, each phase has all threads.
Test(barrier, giving_up_loses_no_phase, .timeout = 120) {
  constexpr int kThreads = 6;
  const int kPhases = chaos_rounds(200);
  Barrier b(kThreads);
  std::atomic<int> phases[kThreads] = {};
  Threads t;
  for (int i = 0; i < kThreads; i++) {
    auto body = [&, i] {
      Random random{static_cast<uint64_t>(i)};
      for (int p = 0; p < kPhases; p++) {
        while (int e = b.arrive_and_wait_for(random(40'000))) cr_assert_eq(e, ETIMEDOUT);
        phases[i] = p + 1;
        for (auto& other : phases) cr_assert(other >= p && other <= p + 1);
      }
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
}

}  // namespace
