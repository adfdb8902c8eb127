// SPDX-License-Identifier: MIT
// How many slots are held back, on made-up machines: the test tells the time, and how fast the process is with each number of slots.
// alone: sched
#include "sched/run/rivals.h"

#include "tests/test.h"
#ifndef ALONE
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "sched/worker.h"
#endif

using namespace fiberthread;

namespace {

constexpr uint64_t kMs = 1'000'000, kSecond = 1000 * kMs;
constexpr uint32_t kNone = 99;

// What a process with that many slots does in a second.
struct Load {
  uint64_t done, taken, used;
};

struct Machine {
  SlotsHeldBack decision;
  uint32_t slots;
  Load (*load)(uint32_t);
  bool hogs = false;
  SlotsHeldBack::Sample done{kSecond};
  uint32_t held = 0, most = 0, least = kNone;
  uint64_t held_ms = 0;

  Machine(uint32_t n, Load (*l)(uint32_t)) : slots(n), load(l) {}

  // Lets the time pass, with a look of sysmon each millisecond.
  void run(uint64_t ms) {
    most = 0;
    least = kNone;
    held_ms = 0;
    for (uint64_t i = 0; i < ms; i++) {
      Load l = load(slots - held);
      done.at += kMs;
      done.done += l.done / 1000;
      done.taken += l.taken / 1000;
      done.used += l.used / 1000;
      if (decision.wants_sample(done.at, hogs)) held = decision.take(done, slots);
      most = held > most ? held : most;
      least = held < least ? held : least;
      held_ms += held > 0;
    }
  }
};

// Clients on the same CPUs: a CPU fewer for the server is one more for them.
Load better_with_one(uint32_t n) { return n == 1 ? Load{150'000, 20'000, 900 * kMs} : Load{100'000, 20'000, 1300 * kMs}; }
Load better_with_two(uint32_t n) { return n == 1 ? Load{100'000, 20'000, 800 * kMs} : Load{150'000, 20'000, 1300 * kMs}; }

}  // namespace

Test(rivals, one_slot_fewer_is_kept_if_it_gains) {
  Machine m(2, better_with_one);
  m.run(1500);
  cr_assert_eq(m.held, 1u);
  m.run(60'000);
  // From time to time it looks whether two have become better. Such a look is short.
  cr_assert_eq(m.held, 1u);
  cr_assert_eq(m.least, 0u, "it never tried two again");
  cr_assert(m.held_ms > 58'000, "two slots for %lu ms of 60 s", 60'000 - static_cast<unsigned long>(m.held_ms));
}

Test(rivals, a_try_that_loses_is_taken_back_soon_and_made_ever_more_seldom) {
  Machine m(2, better_with_two);
  m.run(1500);
  cr_assert(m.most == 1 && m.held == 0, "most %u, held %u", m.most, m.held);
  cr_assert(m.held_ms < 200, "%lu ms", static_cast<unsigned long>(m.held_ms));
  m.run(60'000);
  cr_assert_eq(m.held, 0u);
  cr_assert(m.held_ms < 1000, "%lu ms of 60 s with too few slots", static_cast<unsigned long>(m.held_ms));
}

Test(rivals, a_small_gain_is_not_enough) {
  Machine m(2, [](uint32_t n) { return n == 1 ? Load{105'000, 20'000, 700 * kMs} : Load{100'000, 20'000, 1300 * kMs}; });
  m.run(20'000);
  cr_assert(m.most == 1 && m.held == 0);
}

Test(rivals, one_slot_fewer_is_kept_if_it_does_as_much_and_has_its_cpu) {
  Machine in_peace(2, [](uint32_t n) { return n == 1 ? Load{100'000, 1700, 990 * kMs} : Load{101'000, 2000, 1050 * kMs}; });
  in_peace.run(2000);
  cr_assert_eq(in_peace.held, 1u);
  in_peace.run(60'000);
  cr_assert(in_peace.held_ms > 58'000, "two slots for %lu ms of 60 s", 60'000 - static_cast<unsigned long>(in_peace.held_ms));

  Machine stopped(2, [](uint32_t n) { return n == 1 ? Load{100'000, 1700, 600 * kMs} : Load{101'000, 2000, 1050 * kMs}; });
  stopped.run(20'000);
  cr_assert(stopped.most == 1 && stopped.held == 0);

  Machine loses(2, [](uint32_t n) { return n == 1 ? Load{90'000, 10, 990 * kMs} : Load{101'000, 2000, 1050 * kMs}; });
  loses.run(20'000);
  cr_assert(loses.most == 1 && loses.held == 0);
}

Test(rivals, many_small_losses_are_not_kept) {
  Machine m(8, [](uint32_t n) { return Load{100'000 - (8 - n) * 3'500, 2000, n * 830 * kMs + (n < 8) * n * 60 * kMs}; });
  m.run(60'000);
  cr_assert_leq(m.most, 2u, "%u", m.most);
}

Test(rivals, a_try_that_makes_hogs_is_made_ever_more_seldom) {
  Machine m(2, [](uint32_t n) { return n == 1 ? Load{15'000, 2000, 990 * kMs} : Load{25'000, 2000, 1300 * kMs}; });
  m.run(60'000);
  cr_assert(m.held == 0 && m.held_ms < 1000, "%lu ms of 60 s", static_cast<unsigned long>(m.held_ms));
}

Test(rivals, loops_that_are_hogs_now_and_then_do_not_compute) {
  Machine m(2, better_with_one);
  for (int i = 0; i < 1500; i += 20) {
    m.hogs = true;
    m.run(1);
    m.hogs = false;
    m.run(19);
  }
  cr_assert_eq(m.held, 1u);
}

Test(rivals, nobody_takes_the_cpus) {
  Machine m(2, [](uint32_t) { return Load{150'000, 20, 1300 * kMs}; });  // it sleeps now and then
  m.run(20'000);
  cr_assert_eq(m.most, 0u);
}

Test(rivals, the_cpus_are_all_its_own_or_idle) {
  Machine all(2, [](uint32_t) { return Load{150'000, 2000, 1950 * kMs}; }), idle(2, [](uint32_t) { return Load{50'000, 2000, 300 * kMs}; });
  all.run(20'000);
  idle.run(20'000);
  cr_assert(all.most == 0 && idle.most == 0);
}

Test(rivals, those_who_compute_get_all_slots) {
  Machine m(2, better_with_one);
  m.run(1500);
  cr_assert_eq(m.held, 1u);
  m.hogs = true;
  m.run(60);
  cr_assert_eq(m.held, 0u);
  m.run(10'000);
  cr_assert_eq(m.most, 0u);
  m.hogs = false;
  m.load = [](uint32_t) { return Load{1000, 20'000, 1300 * kMs}; };  // few switches: they compute, too
  m.run(10'000);
  cr_assert_eq(m.most, 0u);
}

Test(rivals, the_slot_comes_back_when_the_rivals_are_gone) {
  Machine m(2, better_with_one);
  m.run(1500);
  cr_assert_eq(m.held, 1u);
  m.load = [](uint32_t n) { return Load{n * 150'000, 20, n * 990 * kMs}; };
  m.run(3000);
  cr_assert_eq(m.held, 0u);
  m.run(20'000);
  cr_assert_eq(m.most, 0u);
}

Test(rivals, a_rest_gives_the_slot_back) {
  Machine m(2, better_with_one);
  m.run(1500);
  cr_assert_eq(m.held, 1u);
  m.done.at += kSecond;  // sysmon has slept, until work came
  m.done.done += 200'000;
  m.run(1);
  cr_assert_eq(m.held, 0u);
}

Test(rivals, one_slot_at_a_time_and_one_stays) {
  // The fewer the better.
  Machine m(4, [](uint32_t n) { return Load{uint64_t{1'000'000} / n, 20'000, n * 700 * kMs}; });
  m.run(1000);
  cr_assert_eq(m.most, 1u);
  m.run(20'000);
  cr_assert_eq(m.most, 3u);
}

Test(rivals, windows_that_differ_by_a_third_change_nothing) {
  Machine m(2, [](uint32_t n) {
    static unsigned seed = 1;
    static uint64_t calls, part = 100;
    if (calls++ % 50 == 0) {
      seed = seed * 1103515245 + 12345;
      part = 85 + (seed >> 16) % 31;
    }
    return Load{100'000 * part / 100, 20'000, (n == 1 ? 700 : 1300) * kMs};
  });
  m.run(120'000);
  cr_assert(m.held_ms < 12'000, "one slot for %lu ms of 120 s, for nothing", static_cast<unsigned long>(m.held_ms));
}

#ifndef ALONE
namespace {
uint64_t events_counted() {
  uint64_t n = 0;
  for (Worker* w = all_workers(); w; w = w->thread.all_next) n += __atomic_load_n(&w->counts.events, __ATOMIC_RELAXED);
  return n;
}

void* wait_for_ready_ends(void*) {
  int ends[2], ep = epoll_create1(EPOLL_CLOEXEC);
  epoll_event ready[2] = {{.events = EPOLLIN, .data = {}}, {.events = EPOLLOUT, .data = {}}};
  cr_assert(pipe(ends) == 0 && write(ends[1], "", 1) == 1);
  for (int i = 0; i < 2; i++) cr_assert_eq(epoll_ctl(ep, EPOLL_CTL_ADD, ends[i], &ready[i]), 0);
  for (int i = 0; i < 200; i++) cr_assert_eq(epoll_wait(ep, ready, 2, i % 2 ? -1 : 0), 2);
  close(ends[0]);
  close(ends[1]);
  close(ep);
  return nullptr;
}
}  // namespace

// In a thread: without one there is no scheduler.
Test(rivals, events_of_waits_are_counted) {
  uint64_t before = events_counted();
  pthread_t t;
  cr_assert_eq(pthread_create(&t, nullptr, wait_for_ready_ends, nullptr), 0);
  pthread_join(t, nullptr);
  uint64_t n = events_counted() - before;
  cr_assert(n >= 400 && n < 600, "%lu of 400", static_cast<unsigned long>(n));  // the test's framework may wait, too
}
#endif
