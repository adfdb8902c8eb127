// SPDX-License-Identifier: MIT
// The table of wait queues: order, moving, giving up. No waiter is forgotten when all of it happens at once.
// alone: sync
#include "sync/parking_lot.h"

#include "tests/test.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <initializer_list>
#include <vector>

#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

auto always = [] { return true; };

Test(parking_lot, queues_keep_their_order_whatever_is_taken_out) {
  // There are more addresses than buckets, so some share a bucket.
  constexpr size_t kAddresses = 6000;
  static char addresses[kAddresses];
  static FiberRecord ranked[3];
  for (uint8_t rank = 0; rank < 3; rank++) ranked[rank].wait.rank = rank;
  std::vector<std::deque<Waiter*>> model(kAddresses);
  Random random{1};
  for (int i = 0; i < 200000; i++) {
    size_t a = random(4) ? random(kAddresses) : random(8);  // makes some queues long
    auto& expected = model[a];
    LockedQueue q(&addresses[a]);
    cr_assert_eq(q.first(), expected.empty() ? nullptr : expected.front());
    if (expected.empty() || random(5) < 3) {
      auto* w = new Waiter;
      w->in_front = random(3) == 0;
      w->fiber = &ranked[random(2) ? 0 : random(3)];
      uint32_t rank = w->fiber->wait.rank;
      auto at = expected.begin();
      while (at != expected.end() && (w->in_front ? (*at)->fiber->wait.rank > rank : (*at)->fiber->wait.rank >= rank)) ++at;
      expected.insert(at, w);
      q.add(*w);
    } else {
      size_t at = random(3) == 0 ? 0 : random(static_cast<uint32_t>(expected.size()));
      Waiter* w = expected[at];
      expected.erase(expected.begin() + static_cast<long>(at));
      q.remove(*w);
      delete w;
    }
    size_t n = 0;
    for (Waiter* w = q.first(); w; w = w->next) cr_assert_eq(w, expected[n++]);
    cr_assert_eq(n, expected.size());
  }
  for (size_t a = 0; a < kAddresses; a++)
    for (LockedQueue q(&addresses[a]); Waiter* w = q.first();) {
      q.remove(*w);
      delete w;
    }
}

Test(parking_lot, first_come_first_woken) {
  char address = 0;
  std::vector<int> order;  // only one thread at a time writes
  std::atomic<int> woken{0};
  Threads t;
  for (int i = 0; i < 20; i++) {
    auto body = [&, i] {
      Waiter w;
      cr_assert(park(&address, w, always, {"test"}) == WakeReason::Woken);
      order.push_back(i);
      woken++;
    };
    i % 5 == 0 ? t.kernel(body) : t.fiber(body);
    until_queued(&address, static_cast<size_t>(i) + 1);
  }
  for (int i = 0; i < 20; i++) {
    cr_assert_eq(unpark_waiters(&address, 1), 1u);
    while (woken != i + 1) give_way();
    cr_assert_eq(order.back(), i);
  }
}

Test(parking_lot, wakes_as_many_as_asked_and_says_so) {
  char address = 0;
  std::atomic<int> woken{0};
  Threads t;
  for (int i = 0; i < 10; i++)
    t.fiber([&] {
      Waiter w;
      park(&address, w, always, {"test"});
      woken++;
    });
  until_queued(&address, 10);
  size_t told = 0;
  bool told_more = false;
  auto done = [&](size_t n, bool more) { told = n, told_more = more; };
  cr_assert_eq(unpark_waiters(&address, 3, done), 3u);
  cr_assert(told == 3 && told_more);
  cr_assert_eq(queued(&address), 7u);
  cr_assert_eq(unpark_waiters(&address, 100, done), 7u);
  cr_assert(told == 7 && !told_more);
  cr_assert_eq(unpark_all(&address), 0u);
  t.join();
  cr_assert_eq(woken, 10);
}

Test(parking_lot, failed_condition_does_not_queue) {
  char address = 0;
  Waiter w;
  cr_assert(park(&address, w, [] { return false; }, {"test"}) == WakeReason::Invalid);
  cr_assert_eq(queued(&address), 0u);
}

Test(parking_lot, wake_up_before_the_sleep_counts) {
  char address = 0;
  auto self_wake = [&] {
    Waiter w;
    auto wake = [&] { cr_assert_eq(unpark_all(&address), 1u); };
    cr_assert(park(&address, w, always, wake, {"test"}) == WakeReason::Woken);
  };
  Threads t;
  t.kernel(self_wake);
  t.fiber(self_wake);
}

void times_out() {
  char address = 0;
  for (uint64_t ms : {0, 1, 15}) {
    Waiter w;
    uint64_t deadline = now_ns() + ms * kMs;
    cr_assert(park(&address, w, always, {"test"}, deadline) == WakeReason::TimedOut);
    cr_assert(now_ns() >= deadline);
    cr_assert_eq(queued(&address), 0u);
  }
  Waiter w;
  cr_assert(park(&address, w, always, {"test"}, 0) == WakeReason::TimedOut);
}

Test(parking_lot, times_out_but_not_early) {
  times_out();  // on main, while the scheduler is off
  Threads t;
  t.kernel(times_out);
  t.fiber(times_out);
}

Test(parking_lot, interrupts_of_the_mask_end_a_wait) {
  char address = 0;
  for (bool kernel : {true, false}) {
    std::atomic<FiberRecord*> who{nullptr};
    std::atomic<int> phase{0};
    Threads t;
    auto body = [&] {
      FiberRecord* me = self();
      who = me;
      Waiter w;
      cr_assert(park(&address, w, always, {"test"}, kNever, kInterruptUnwind) == WakeReason::Interrupted);
      cr_assert_eq(queued(&address), 0u);
      cr_assert(me->run.interrupts & kInterruptUnwind);
      Waiter again;  // the interrupt is still pending
      cr_assert(park(&address, again, always, {"test"}, kNever, kInterruptUnwind) == WakeReason::Interrupted);
      phase = 1;
      Waiter deaf;
      cr_assert(park(&address, deaf, always, {"test"}) == WakeReason::Woken);
      me->run.interrupts.fetch_and(~uint32_t{kInterruptUnwind});
      Waiter by_signal;
      cr_assert(park(&address, by_signal, always, {"test"}, kNever, kInterruptSafePoint) == WakeReason::Interrupted);
    };
    kernel ? t.kernel(body) : t.fiber(body);
    until_queued(&address, 1);
    interrupt(who, kInterruptUnwind);
    while (phase != 1) give_way();
    until_queued(&address, 1);
    unpark(who);  // a spurious wake-up
    cr_assert_eq(unpark_all(&address), 1u);
    until_queued(&address, 1);
    interrupt(who, kInterruptSafePoint);
    t.join();
  }
}

Test(parking_lot, token_and_tag_go_between_waiter_and_waker) {
  char address = 0;
  Threads t;
  for (uint32_t i = 0; i < 8; i++)
    t.fiber([&, i] {
      Waiter w;
      w.tag = i;
      park(&address, w, always, {"test"});
      cr_assert_eq(w.token, i * 10);
    });
  until_queued(&address, 8);
  WakeList list;
  {
    LockedQueue q(&address);
    for (Waiter* w = q.first(); w; w = w->next) w->token = w->tag * 10;
    for (Waiter* w = q.first(); w;) {  // takes some out of the middle
      Waiter* next = w->next;
      if (w->tag % 3) list.add(q, *w);
      w = next;
    }
    while (q.first()) list.add(q, *q.first());
  }
  cr_assert_eq(list.size(), 8u);
  list.wake_all();
}

// ---- moving ----

struct MoveAnswer {
  bool answer;
  std::atomic<int> asked{0};
};
bool answer_move(void* p) {
  auto* a = static_cast<MoveAnswer*>(p);
  a->asked++;
  return a->answer;
}

Test(parking_lot, moved_waiters_sleep_on_and_no_longer_give_up) {
  char from, to;
  std::atomic<int> woken{0};
  std::atomic<FiberRecord*> who[6] = {};
  Threads t;
  for (uint32_t i = 0; i < 6; i++) {
    t.fiber([&, i] {
      who[i] = self();
      Waiter w;
      w.requeue_to = &to;
      w.tag = i;
      uint64_t deadline = i == 5 ? now_ns() + 400 * kMs : kNever;
      cr_assert(park(&from, w, always, {"test"}, deadline, kInterruptUnwind) == WakeReason::Woken);
      cr_assert(w.requeued);
      self()->run.interrupts.fetch_and(~uint32_t{kInterruptUnwind});
      if (i == 5) cr_assert(now_ns() >= deadline);
      woken++;
    });
    until_queued(&from, i + 1);
  }
  Waiter before;  // this waiter was there first, and stays first
  before.tag = 100;
  {
    LockedQueue q(&to);
    q.add(before);
  }
  MoveAnswer yes{true};
  cr_assert_eq(requeue_waiters(&from, &to, answer_move, &yes), 6u);
  cr_assert_eq(yes.asked, 1);
  cr_assert_eq(queued(&from), 0u);
  {
    LockedQueue q(&to);
    Waiter* w = q.first();
    cr_assert_eq(w->tag, 100u);
    for (uint32_t i = 0; i < 6; i++) {
      w = w->next;
      cr_assert_eq(w->tag, i);
    }
    cr_assert_null(w->next);
    q.remove(before);
  }
  for (auto& f : who) interrupt(f, kInterruptUnwind);
  uint64_t late = now_ns() + 500 * kMs;
  while (now_ns() < late) give_way();
  cr_assert_eq(woken, 0);
  cr_assert_eq(queued(&to), 6u);
  cr_assert_eq(unpark_all(&to), 6u);
  t.join();
  cr_assert_eq(woken, 6);
}

Test(parking_lot, one_waiter_is_woken_if_the_others_may_not_move) {
  char from, to;
  for (uint32_t n : {1u, 5u}) {
    std::atomic<int> woken{0};
    std::atomic<uint64_t> token{99};
    Threads t;
    for (uint32_t i = 0; i < n; i++) {
      t.fiber([&, i] {
        Waiter w;
        w.requeue_to = &to;
        park(&from, w, always, {"test"});
        if (i == 0) token = w.token;
        cr_assert_eq(w.requeued, i != 0);
        woken++;
      });
      until_queued(&from, i + 1);
    }
    MoveAnswer no{false};
    cr_assert_eq(requeue_waiters(&from, &to, answer_move, &no), n);
    cr_assert_eq(no.asked, 1);
    while (woken != 1) give_way();
    cr_assert_eq(token, n > 1 ? 1u : 0u);
    cr_assert_eq(queued(&to), n - 1);
    cr_assert_eq(unpark_all(&to), n - 1);
  }
}

Test(parking_lot, waiters_with_another_target_are_woken_instead_of_moved) {
  char from, to, elsewhere;
  std::atomic<int> woken{0};
  Threads t;
  for (int i = 0; i < 6; i++) {
    t.fiber([&, i] {
      Waiter w;
      w.requeue_to = i % 3 == 0 ? &to : i % 3 == 1 ? &elsewhere : nullptr;
      park(&from, w, always, {"test"});
      woken++;
    });
    until_queued(&from, static_cast<size_t>(i) + 1);
  }
  MoveAnswer yes{true};
  cr_assert_eq(requeue_waiters(&from, &to, answer_move, &yes), 6u);
  while (woken != 4) give_way();
  cr_assert_eq(queued(&to), 2u);
  MoveAnswer not_asked{true};
  char nobody = 0;
  cr_assert_eq(requeue_waiters(&nobody, &to, answer_move, &not_asked), 0u);
  cr_assert_eq(not_asked.asked, 0);
  unpark_all(&to);
}

Test(parking_lot, a_queue_may_be_moved_to_itself_or_in_part) {
  char from, to;
  Threads t;
  for (uint32_t i = 0; i < 4; i++) {
    t.fiber([&, i] {
      Waiter w;
      w.tag = i;
      park(&from, w, always, {"test"});
    });
    until_queued(&from, i + 1);
  }
  {
    LockedQueues q(&from, &to);
    Waiter* second = q.first()->next;
    q.move(*second);
  }
  {
    LockedQueue q(&to);
    cr_assert_eq(q.first()->tag, 1u);
    cr_assert_null(q.first()->next);
  }
  {
    LockedQueues q(&from, &from);
    q.move(*q.first());
  }
  {
    LockedQueue q(&from);
    Waiter* w = q.first();
    for (uint32_t tag : {2u, 3u, 0u}) {
      cr_assert_eq(w->tag, tag);
      w = w->next;
    }
  }
  cr_assert_eq(unpark_all(&from) + unpark_all(&to), 4u);
}

// ---- everything at once ----

// No thread wakes these waiters, so each must see its deadline, wherever it was moved meanwhile.
Test(parking_lot, waiters_that_are_moved_give_up, .timeout = 240) {
  constexpr int kWaiters = 16, kRounds = 3000;
  static char here, there;
  std::atomic<int> left{kWaiters};
  Threads t;
  auto waiter = [&](int i) {
    Random random{static_cast<uint64_t>(i)};
    for (int r = 0; r < kRounds; r++) {
      Waiter w;
      w.in_front = random(4) == 0;
      cr_assert(park(random(2) ? &there : &here, w, always, {"test"}, now_ns() + random(100'000)) == WakeReason::TimedOut);
      cr_assert_null(w.bucket.load());
    }
    left--;
  };
  for (int i = 0; i < 4; i++) t.kernel([&, i] { waiter(i); });
  for (int i = 4; i < kWaiters; i++) t.fiber([&, i] { waiter(i); });
  for (int i = 0; i < 3; i++)
    t.fiber([&, i] {
      Random random{static_cast<uint64_t>(i) + 1000};
      while (left > 0) {
        bool back = random(2);
        {
          LockedQueues q(back ? &there : &here, back ? &here : &there);
          for (uint64_t n = random(4); n > 0 && q.first(); n--) q.move(*q.first());
        }
        if (random(4) == 0) give_way();
      }
    });
  t.join();
  cr_assert_eq(queued(&here) + queued(&there), 0u);
}

// Each wake-up that a waker sent must reach exactly one waiter. Meanwhile waiters give up, are interrupted and are moved both ways.
Test(parking_lot, no_wake_up_is_lost_or_made_up, .timeout = 240) {
  constexpr int kWaiters = 24, kRounds = 3000;
  static char here, there;
  std::atomic<uint64_t> sent{0}, got{0};
  std::atomic<int> left{kWaiters};
  std::atomic<FiberRecord*> who[kWaiters] = {};
  Threads t;
  auto waiter = [&](int i) {
    Random random{static_cast<uint64_t>(i)};
    FiberRecord* me = self();
    who[i] = me;
    for (int r = 0; r < kRounds; r++) {
      Waiter w;
      bool swap = random(2);
      w.requeue_to = swap ? &here : &there;
      w.in_front = random(4) == 0;
      uint64_t deadline = random(3) ? now_ns() + random(300'000) : kNever;
      uint32_t mask = random(2) ? uint32_t{kInterruptUnwind} : 0;
      got += park(swap ? &there : &here, w, always, {"test"}, deadline, mask) == WakeReason::Woken;
      me->run.interrupts.fetch_and(~uint32_t{kInterruptUnwind});
    }
    left--;
  };
  auto waker = [&](int i) {
    Random random{static_cast<uint64_t>(i) + 1000};
    while (left > 0) {
      char* a = random(2) ? &here : &there;
      switch (random(4)) {
        case 0: sent += unpark_waiters(a, 1 + random(3)); break;
        case 1: {
          MoveAnswer answer{random(3) != 0};
          requeue_waiters(a, a == &here ? &there : &here, answer_move, &answer);
          // A moved waiter that does not belong to the other queue is woken instead, which is not counted.
          break;
        }
        case 2:
          if (FiberRecord* f = who[random(kWaiters)]) interrupt(f, kInterruptUnwind);
          break;
        default: give_way();
      }
    }
  };
  for (int i = 0; i < 4; i++) t.kernel([&, i] { waiter(i); });
  t.kernel([&] { waker(0); });
  for (int i = 4; i < kWaiters; i++) t.fiber([&, i] { waiter(i); });
  for (int i = 1; i < 4; i++) t.fiber([&, i] { waker(i); });
  t.join();
  cr_assert(got >= sent, "%lu sent, %lu arrived", sent.load(), got.load());
  cr_assert_eq(queued(&here) + queued(&there), 0u);
}

Test(parking_lot, counts_of_wake_ups_agree, .timeout = 240) {
  constexpr int kWaiters = 24, kRounds = 4000;
  static char here, there;
  std::atomic<uint64_t> sent{0}, got{0};
  std::atomic<int> left{kWaiters};
  Threads t;
  auto waiter = [&](int i) {
    Random random{static_cast<uint64_t>(i)};
    for (int r = 0; r < kRounds; r++) {
      Waiter w;
      w.in_front = random(4) == 0;
      got += park(random(2) ? &here : &there, w, always, {"test"}, random(3) ? now_ns() + random(200'000) : kNever) == WakeReason::Woken;
    }
    left--;
  };
  for (int i = 0; i < 4; i++) t.kernel([&, i] { waiter(i); });
  for (int i = 4; i < kWaiters; i++) t.fiber([&, i] { waiter(i); });
  for (int i = 0; i < 3; i++)
    t.fiber([&, i] {
      Random random{static_cast<uint64_t>(i) + 1000};
      while (left > 0) {
        char* a = random(2) ? &here : &there;
        switch (random(3)) {
          case 0: sent += unpark_waiters(a, 1 + random(3)); break;
          case 1: {
            WakeList list;
            {
              LockedQueues q(a, a == &here ? &there : &here);
              if (q.first()) list.add(q, *q.first());
              while (q.first()) q.move(*q.first());
            }
            list.wake_all();
            sent += list.size();
            break;
          }
          default: give_way();
        }
      }
    });
  t.join();
  cr_assert_eq(sent, got);
}

#if defined(__x86_64__) && !defined(ALONE)  // the emulator cannot fork with threads; forks are told by shim
Test(parking_lot, nobody_waits_in_a_forked_child) {
  char address = 0;
  Threads t;
  for (int i = 0; i < 3; i++)
    t.fiber([&] {
      Waiter w;
      park(&address, w, always, {"test"});
    });
  until_queued(&address, 3);
  pid_t child = fork();
  if (child == 0) _exit(queued(&address) == 0 && unpark_all(&address) == 0 ? 0 : 1);
  int status;
  cr_assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  cr_assert_eq(unpark_all(&address), 3u);
}
#endif

}  // namespace
