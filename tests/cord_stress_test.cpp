// SPDX-License-Identifier: MIT
// Cords under stress: fibers, kernel threads and a cord's own fiber send to, call and spawn in cords, and nothing is lost.
#include "fiberthread/cord.h"

#include "tests/test.h"

#include <errno.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <vector>

#include "sched/chaos.h"
#include "sched/worker.h"
#include "tests/cords.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

// A cord that counts the messages, calls and spawns that have reached it. Only its fibers touch the counts, one at a time.
struct Node {
  explicit Node(const char* name) : cord(name) {}
  Cord cord;
  long received = 0, called = 0, spawned = 0;
  int inside = 0;
  void enter(long& what) {
    cr_assert_eq(inside++, 0);
    what++;
    inside--;
  }
  void receive_until_closed(int reader) {
    void* m;
    int e;
    while ((e = Cord::receive(&m, reader ? FIBERTHREAD_FOREVER : 20'000)) != EPIPE) {
      if (e == ETIMEDOUT) continue;
      cr_assert_eq(e, 0);
      enter(received);
      if (reader == 2) give_way();
    }
  }
};

constexpr int kCords = 3, kUsers = 6, kEach = 400;
using Nodes = std::vector<std::unique_ptr<Node>>;
struct Done {
  std::atomic<long> sent{0}, calls{0}, spawns{0};
};

// Sends to, calls and spawns in any of the nodes.
void use_nodes(Nodes& nodes, Done& done, uint64_t seed) {
  Random random{seed};
  for (int i = 0; i < kEach; i++) {
    Node& n = *nodes[random(kCords)];
    switch (random(4)) {
      case 0:
        cr_assert_eq(n.cord.call([&n] { n.enter(n.called); }), 0);
        done.calls++;
        break;
      case 1: {
        Fiber f = n.cord.spawn([&n] {
          give_way();
          n.enter(n.spawned);
        });
        cr_assert_eq(f.error(), 0);
        done.spawns++;
        if (random(2)) f.join();
        else f.detach();
        break;
      }
      default: cr_assert_eq(n.cord.send(&n), 0); done.sent++;
    }
    if (random(20) == 0) usleep(50);
  }
}

// Closes and joins all cords. Each must have got what the users have done.
void close_and_count(Nodes& nodes, std::vector<Fiber>& readers, const Done& done) {
  for (auto& n : nodes) n->cord.close();
  join_all(readers);
  long received = 0, called = 0, spawned = 0;
  for (auto& n : nodes) {
    cr_assert_eq(n->cord.join(), 0);
    received += n->received;
    called += n->called;
    spawned += n->spawned;
  }
  cr_assert_eq(received, done.sent);
  cr_assert_eq(called, done.calls);
  cr_assert_eq(spawned, done.spawns);
}

// Fibers, kernel threads and a cord's own fiber send to, call and spawn in cords.
void stress(unsigned workers, uint64_t seed) {
  options.workers = workers;
  chaos_seed = seed;
  Nodes nodes;
  for (int i = 0; i < kCords; i++) {
    nodes.push_back(std::make_unique<Node>("stress"));
    cr_assert_eq(nodes.back()->cord.error(), 0);
  }
  std::vector<Fiber> readers;
  for (auto& n : nodes)
    for (int i = 0; i < 3; i++) readers.push_back(n->cord.spawn([&n, i] { n->receive_until_closed(i); }));
  Done done;
  {
    Threads t;
    for (int u = 0; u < kUsers; u++) {
      auto user = [&, u] { use_nodes(nodes, done, static_cast<uint64_t>(u) + seed); };
      u % 2 ? t.kernel(user) : t.fiber(user);
    }
    // One of the users lives in a cord itself.
    readers.push_back(nodes[0]->cord.spawn([&] {
      for (int i = 0; i < kEach; i++) {
        nodes[1]->cord.send(nullptr);
        done.sent++;
        if (i % 16 == 0) usleep(10);
      }
    }));
  }
  readers.back().join();
  readers.pop_back();
  close_and_count(nodes, readers, done);
}
Test(cord, stress_on_1_worker, .timeout = 240) { stress(1, 0), stress(1, 3); }
Test(cord, stress_on_2_workers, .timeout = 240) { stress(2, 0), stress(2, 4); }
Test(cord, stress_on_16_workers, .timeout = 240) { stress(16, 0), stress(16, 5); }

}  // namespace
