// SPDX-License-Identifier: MIT
// The checker of histories accepts linearizable histories and rejects others. The test has examples, and a comparison with trying all
// orders.
#include "tests/linearize.h"

#include "tests/test.h"

#include <deque>
#include <string>
#include <vector>

namespace {

struct Access {
  bool write;
  int value;
};
struct Register {
  int value = 0;
  bool apply(const Access& a) {
    if (a.write) value = a.value;
    return value == a.value;
  }
  std::string key() const { return std::to_string(value); }
};

struct Item {
  bool add;
  int value;  // -1: the queue was empty
};
struct Queue {
  std::deque<int> items;
  bool apply(const Item& i) {
    if (i.add) {
      items.push_back(i.value);
      return true;
    }
    if (items.empty()) return i.value == -1;
    if (items.front() != i.value) return false;
    items.pop_front();
    return true;
  }
  std::string key() const {
    std::string k;
    for (int i : items) k += std::to_string(i) + ',';
    return k;
  }
};

using Registers = std::vector<Recorded<Access>>;
using Queues = std::vector<Recorded<Item>>;

Test(linearize, accepts) {
  cr_assert(linearizable<Register>(Registers{}));
  // A read during a write sees the old or the new value. Two reads during it see them in order.
  cr_assert(linearizable<Register>(Registers{{{true, 1}, 0, 9, 0}, {{false, 0}, 1, 2, 1}, {{false, 1}, 3, 4, 1}}));
  // A call that did not return may have happened, or not.
  cr_assert(linearizable<Register>(Registers{{{true, 1}, 0, kPending, 0}, {{false, 1}, 1, 2, 1}}));
  cr_assert(linearizable<Register>(Registers{{{true, 1}, 0, kPending, 0}, {{false, 0}, 1, 2, 1}}));
  cr_assert(linearizable<Queue>(Queues{{{true, 1}, 0, 5, 0}, {{true, 2}, 1, 4, 1}, {{false, 2}, 6, 7, 0}, {{false, 1}, 8, 9, 0}}));
}

Test(linearize, rejects) {
  // The new value, then the old one.
  cr_assert(!linearizable<Register>(Registers{{{true, 1}, 0, 9, 0}, {{false, 1}, 1, 2, 1}, {{false, 0}, 3, 4, 1}}));
  // The old value after the write has returned.
  cr_assert(!linearizable<Register>(Registers{{{true, 1}, 0, 1, 0}, {{false, 0}, 2, 3, 1}}));
  // Two calls get the same item. An item was never added. Items come out of order. The queue is said to be empty while it surely has an
  // item.
  cr_assert(!linearizable<Queue>(Queues{{{true, 1}, 0, 1, 0}, {{false, 1}, 2, 5, 0}, {{false, 1}, 3, 4, 1}}));
  cr_assert(!linearizable<Queue>(Queues{{{true, 1}, 0, 1, 0}, {{false, 2}, 2, 3, 0}}));
  cr_assert(!linearizable<Queue>(Queues{{{true, 1}, 0, 1, 0}, {{true, 2}, 2, 3, 0}, {{false, 2}, 4, 5, 0}}));
  cr_assert(!linearizable<Queue>(Queues{{{true, 1}, 0, 1, 0}, {{false, -1}, 2, 3, 0}}));
  // A search that is not finished proves nothing.
  cr_assert(!linearizable<Register>(Registers{{{true, 1}, 0, 3, 0}, {{true, 2}, 1, 2, 1}}, Register(), 1));
}

// Tries all orders that agree with the times.
template <class Model, class Call>
bool by_force(const std::vector<Recorded<Call>>& calls, std::vector<bool>& placed, const Model& model) {
  bool all = true;
  for (size_t i = 0; i < calls.size(); i++) all = all && (placed[i] || calls[i].end == kPending);
  if (all) return true;
  for (size_t i = 0; i < calls.size(); i++) {
    bool may = !placed[i];
    for (size_t k = 0; k < calls.size(); k++) may = may && (placed[k] || calls[k].end > calls[i].begin);
    Model m = model;
    if (!may || !m.apply(calls[i].call)) continue;
    placed[i] = true;
    if (by_force(calls, placed, m)) return true;
    placed[i] = false;
  }
  return false;
}

Test(linearize, agrees_with_trying_all_orders, .timeout = 240) {
  uint64_t state = 1;
  auto random = [&](uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33) % below;
  };
  int yes = 0, no = 0;
  for (int round = 0; round < 3000; round++) {
    // Three threads, whose calls begin and end at random.
    Queues calls;
    size_t open[3] = {};  // index + 1 of the call that the thread is in
    int added = 0;
    for (uint64_t time = 0; time < 14; time++) {
      size_t t = random(3);
      if (open[t]) {
        calls[open[t] - 1].end = time;
        open[t] = 0;
      } else {
        bool add = random(2);
        calls.push_back({{add, add ? ++added : static_cast<int>(random(4)) - (random(4) == 0)}, time, kPending, t});
        open[t] = calls.size();
      }
    }
    std::vector<bool> placed(calls.size());
    bool expected = by_force(calls, placed, Queue());
    (expected ? yes : no)++;
    fflush(stderr);
    cr_assert_eq(linearizable<Queue>(calls), expected);
  }
  cr_assert(yes > 100 && no > 100);
}

// Long histories are no problem as long as few calls overlap: two threads by turns, each call beside one of the other's.
Test(linearize, long_history) {
  Registers calls;
  for (int i = 0; i < 20000; i++) {
    uint64_t t = 2 * static_cast<uint64_t>(i);
    calls.push_back({{i % 2 == 0, i / 2}, t, t + 3, static_cast<size_t>(i % 2)});
  }
  cr_assert(linearizable<Register>(calls));
  calls.back().call.value--;  // the write of this value, and the next one, were over
  calls.back().begin += 2;
  calls.back().end += 2;
  cr_assert(!linearizable<Register>(calls));
}

}  // namespace
