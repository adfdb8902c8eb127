// SPDX-License-Identifier: MIT
// The three queues: order, room, and that nothing is lost or doubled while others steal.
// alone: sched
#include "sched/queue.h"

#include <atomic>
#include <initializer_list>
#include <memory>
#include <vector>

#include "sched/fiber.h"
#include "tests/test.h"

#include "tests/fibers.h"

using namespace fiberthread;

Test(queue, local_is_first_in_first_out_and_says_when_it_is_full) {
  auto q = std::make_unique<LocalQueue>();
  static FiberRecord f[3];
  for (auto& x : f) cr_assert(q->push(&x));
  for (auto& x : f) cr_assert(q->pop() == &x);
  cr_assert(q->pop() == nullptr && q->empty());
  size_t n = 0;
  while (q->push(&f[0])) n++;
  cr_assert(n >= 65536 - 1, "room for %zu", n);
  while (n--) cr_assert(q->pop() == &f[0]);
  cr_assert(q->empty());
}

Test(queue, the_newest_can_be_taken_back) {
  auto q = std::make_unique<LocalQueue>();
  static FiberRecord f[4];
  cr_assert(q->pop_newest() == nullptr);
  for (auto& x : f) q->push(&x);
  cr_assert(q->pop_newest() == &f[3] && q->pop() == &f[0] && q->size() == 2);
  q->push(&f[3]);
  cr_assert(q->pop_newest() == &f[3] && q->pop_newest() == &f[2] && q->pop_newest() == &f[1]);
  cr_assert(q->pop_newest() == nullptr && q->pop() == nullptr && q->empty());
}

Test(queue, half_is_stolen) {
  auto from = std::make_unique<LocalQueue>(), to = std::make_unique<LocalQueue>();
  static FiberRecord f[9];
  for (auto& x : f) from->push(&x);
  cr_assert(from->steal_into(*to) != nullptr);
  int left = 0, moved = 1;
  while (from->pop()) left++;
  while (to->pop()) moved++;
  cr_assert_eq(left + moved, 9);
  cr_assert(moved >= 4 && moved <= 5, "%d moved", moved);
}

Test(queue, inbox_and_global_keep_their_order) {
  static FiberRecord f[4];
  Inbox inbox;
  GlobalQueue global;
  for (auto& x : f) inbox.push(&x);
  for (auto& x : f) cr_assert(inbox.pop() == &x);
  cr_assert(inbox.pop() == nullptr && inbox.empty());
  global.push(&f[1]);
  global.push(&f[2]);
  global.push_front(&f[0]);
  for (int i = 0; i < 3; i++) cr_assert(global.pop() == &f[i]);
  cr_assert(global.pop() == nullptr && global.empty());
}

Test(queue, the_oldest_that_suits_comes_first) {
  static FiberRecord f[6];
  GlobalQueue global;
  auto pop_odd = [&] { return global.take_if([](const FiberRecord* x) { return (x - f) % 2 == 1; }); };
  cr_assert(pop_odd() == nullptr);
  for (auto& x : f) global.push(&x);
  for (int i = 1; i < 6; i += 2) cr_assert(pop_odd() == &f[i]);
  global.push(&f[1]);  // behind f[4], since f[5] was the last
  cr_assert(global.size() == 4);
  cr_assert(pop_odd() == &f[1]);
  cr_assert(pop_odd() == nullptr);
  cr_assert(global.take(3) == nullptr);
  cr_assert(global.take(1) == &f[2]);
  for (int i = 0; i < 6; i += 4) cr_assert(global.pop() == &f[i]);
  cr_assert(global.empty());
}

// One owner and several thieves. Each fiber comes out as often as it went in.
Test(queue, nothing_is_lost_or_doubled) {
  constexpr int kFibers = 64, kRounds = 60000, kThieves = 3;
  static LocalQueue queue;
  static LocalQueue loot[kThieves];
  static FiberRecord f[kFibers];
  static std::atomic<int> out[kFibers], in_queue[kFibers];
  static std::atomic<bool> stop{false};
  static std::atomic<int> doubled{0};
  static auto take = [](FiberRecord* x) {
    auto i = x - f;
    doubled += in_queue[i].fetch_sub(1) != 1;
    out[i]++;
  };
  fibers::Handle t[kThieves];
  for (long i = 0; i < kThieves; i++)
    t[i] = fibers::spawn(
        [](void* p) -> void* {
          auto& mine = loot[reinterpret_cast<long>(p)];
          while (!stop || !queue.empty()) {
            if (FiberRecord* x = queue.steal_into(mine)) take(x);
            while (FiberRecord* x = mine.pop()) take(x);
            give_way();
          }
          return nullptr;
        },
        reinterpret_cast<void*>(i));
  int in = 0;
  for (int r = 0; r < kRounds; r++) {
    int i = r % kFibers;
    if (in_queue[i] == 0) {
      in_queue[i] = 1;
      cr_assert(queue.push(&f[i]));
      in++;
    }
    if (r % 3 == 0)
      if (FiberRecord* x = r % 2 ? queue.pop() : queue.pop_newest()) take(x);
    if (r % 64 == 0) give_way();
  }
  stop = true;
  for (auto& x : t) fibers::join(x);
  int all = 0;
  for (auto& o : out) all += o;
  cr_assert_eq(doubled.load(), 0);
  cr_assert_eq(all, in);
}

Test(queue, ordered_fibers_leave_oldest_first) {
  static LocalQueue q;
  static FiberRecord f[8];
  for (int i = 0; i < 3; i++) q.push(&f[i]);
  q.keep_order();
  cr_assert(q.keeps_order());
  for (int i = 3; i < 5; i++) q.push(&f[i]);
  // First the two that came later, and then the three in order.
  for (int i : {4, 3, 0, 1, 2}) cr_assert_eq(q.pop_newest(), &f[i]);
  cr_assert_not(q.keeps_order());
  cr_assert_null(q.pop_newest());
  for (int i = 5; i < 8; i++) q.push(&f[i]);
  for (int i : {7, 6, 5}) cr_assert_eq(q.pop_newest(), &f[i]);
}
