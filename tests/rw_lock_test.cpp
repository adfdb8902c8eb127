// SPDX-License-Identifier: MIT
// RwLock: exclusion, and phases in FIFO order. No waiter is forgotten when others give up.
// alone: sync
#include "fiberthread/rw_lock.h"

#include "tests/test.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <initializer_list>
#include <mutex>
#include <shared_mutex>

#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(rw_lock, many_readers_or_one_writer) {
  RwLock l;
  cr_assert(l.try_lock_shared());
  cr_assert(l.try_lock_shared());
  cr_assert(!l.try_lock());
  l.unlock_shared();
  cr_assert(!l.try_lock());
  l.unlock_shared();
  cr_assert(l.try_lock());
  cr_assert(!l.try_lock_shared() && !l.try_lock());
  cr_assert_eq(l.lock_for(0), ETIMEDOUT);
  cr_assert_eq(l.lock_shared_for(0), ETIMEDOUT);
  l.unlock();
  cr_assert_eq(l.lock_shared_until(0), 0);  // a call that need not wait ignores its deadline
  l.unlock_shared();
  cr_assert_eq(l.lock_until(0), 0);
  l.unlock();
  {
    std::shared_lock<RwLock> a(l), b(l);
    std::unique_lock<RwLock> c(l, std::try_to_lock);
    cr_assert(!c.owns_lock());
  }
  std::unique_lock<RwLock> c(l);
}

Test(rw_lock, excludes, .timeout = 120) {
  constexpr int kThreads = 12;
  const int kRounds = chaos_rounds(3000);
  RwLock l;
  std::atomic<int> readers{0}, writers{0};
  long n = 0;
  std::atomic<long> written{0};
  Threads t;
  for (int i = 0; i < kThreads; i++) {
    auto body = [&, i] {
      Random random{static_cast<uint64_t>(i)};
      for (int r = 0; r < kRounds; r++) {
        uint32_t how = random(3);
        if (random(3)) {
          if (how == 0 && !l.try_lock_shared()) continue;
          if (how == 1 && l.lock_shared_for(random(30'000))) continue;
          if (how == 2) l.lock_shared();
          readers++;
          cr_assert_eq(writers, 0);
          if (random(16) == 0) give_way();
          readers--;
          l.unlock_shared();
        } else {
          if (how == 0 && !l.try_lock()) continue;
          if (how == 1 && l.lock_for(random(30'000))) continue;
          if (how == 2) l.lock();
          cr_assert_eq(writers++, 0);
          cr_assert_eq(readers, 0);
          long seen = n;
          if (random(16) == 0) give_way();
          n = seen + 1;
          written++;
          writers--;
          l.unlock();
        }
      }
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
  t.join();
  cr_assert_eq(n, written);
  cr_assert(l.try_lock());
  l.unlock();
}

// Queue: reader, reader, writer, reader, writer, writer, reader. Each phase ends before the next begins.
Test(rw_lock, phases_are_in_the_order_of_arrival) {
  const char kinds[] = "rrwrwwr";
  const int phases[] = {0, 0, 1, 2, 3, 4, 5}, members[] = {2, 1, 1, 1, 1, 1};
  RwLock l;
  std::atomic<int> phase{0}, inside{0}, left{0};
  l.lock();
  Threads t;
  for (int i = 0; kinds[i]; i++) {
    auto body = [&, i] {
      kinds[i] == 'w' ? l.lock() : l.lock_shared();
      cr_assert_eq(phase, phases[i]);
      inside++;
      while (inside < members[phases[i]]) give_way();  // the readers of a phase are all inside together
      if (++left == members[phases[i]]) {
        inside = left = 0;
        phase++;
      }
      while (phase == phases[i]) give_way();
      kinds[i] == 'w' ? l.unlock() : l.unlock_shared();
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
    until_queued(&l, static_cast<size_t>(i) + 1);
  }
  l.unlock();
  t.join();
  cr_assert_eq(phase, 6);
  cr_assert(l.try_lock());
  l.unlock();
}

Test(rw_lock, newcomers_wait_behind_waiters) {
  RwLock l;
  l.lock_shared();
  Threads t;
  t.fiber([&] {
    l.lock();
    l.unlock();
  });
  until_queued(&l, 1);
  cr_assert(!l.try_lock_shared());
  l.unlock_shared();
}

Test(rw_lock, readers_behind_a_writer_that_gives_up_go_on) {
  for (bool cancelled : {false, true}) {
    RwLock l;
    l.lock_shared();
    std::atomic<FiberRecord*> waits{nullptr};
    std::atomic<bool> gave_up{false};  // perhaps before this thread has looked even once
    Threads t;
    t.fiber([&] {
      waits = self();
      cr_assert_eq(l.lock_for(cancelled ? 100'000 * kMs : 20 * kMs), cancelled ? ECANCELED : ETIMEDOUT);
      gave_up = true;
      self()->run.interrupts.fetch_and(~uint32_t{kInterruptEnd});
    });
    while (queued(&l) != 1 && !gave_up) give_way();
    for (int i = 0; i < 3; i++)
      t.fiber([&] {
        l.lock_shared();
        l.unlock_shared();
      });
    if (cancelled) {
      until_queued(&l, 4);
      interrupt(waits, kInterruptEnd);
    }
    t.join();  // the others end while this thread still reads
    l.unlock_shared();
    cr_assert(l.try_lock());
    l.unlock();
  }
}

Test(rw_lock, plain_locks_are_not_ended_by_cancellation) {
  RwLock l;
  l.lock();
  std::atomic<FiberRecord*> waits{nullptr};
  std::atomic<bool> got{false};
  Threads t;
  t.fiber([&] {
    waits = self();
    l.lock_shared();
    got = true;
    l.unlock_shared();
    self()->run.interrupts.fetch_and(~uint32_t{kInterruptEnd});
  });
  until_queued(&l, 1);
  interrupt(waits, kInterruptEnd);
  for (int i = 0; i < 100; i++) give_way();
  cr_assert(!got);
  l.unlock();
}

#ifndef ALONE
// The writer's end is asked for by a handler, while it waits.
Test(rw_lock, a_writer_that_ends_keeps_no_reader_waiting, .timeout = 60) {
  struct sigaction action{};
  action.sa_handler = [](int) { pthread_exit(nullptr); };
  sigaction(SIGUSR1, &action, nullptr);
  RwLock l;
  l.lock_shared();
  std::atomic<bool> got{false};
  pthread_t writer;
  pthread_create(
      &writer, nullptr,
      [](void* p) -> void* {
        static_cast<RwLock*>(p)->lock();
        return p;
      },
      &l);
  until_queued(&l, 1);
  Threads t;
  t.fiber([&] {
    l.lock_shared();
    got = true;
    l.unlock_shared();
  });
  until_queued(&l, 2);
  pthread_kill(writer, SIGUSR1);
  void* result = &l;
  cr_assert_eq(pthread_join(writer, &result), 0);
  cr_assert_null(result);
  t.join();  // while we still read
  cr_assert(got);
  l.unlock_shared();
  cr_assert(l.try_lock());
  l.unlock();
}
#endif

// A reader leaves just when the only waiter gives up. The lock's word may then say something else than that waiter has read.
Test(rw_lock, readers_stay_counted_when_writers_give_up) {
  RwLock l;
#ifdef __x86_64__
  constexpr int kTimes = 10'000'000;  // a second
#else
  constexpr int kTimes = 100'000;  // under an emulator
#endif
  std::atomic<bool> over{false};
  auto read = [&] {
    if (l.try_lock_shared()) l.unlock_shared();
  };
  Threads t;
  t.kernel([&] {
    while (!over) read();
  });
  t.kernel([&] {
    for (int i = 0; i < kTimes; i++) {
      if (l.lock_for(1) == 0) l.unlock();
      else read();
    }
    over = true;
  });
  t.join();
  cr_assert(l.try_lock(), "a hold was lost");
  l.unlock();
}

}  // namespace
