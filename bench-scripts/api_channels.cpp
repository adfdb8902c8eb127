// SPDX-License-Identifier: MIT
// Channels and select, and related objects.
#include "api.h"
#include "fiberthread/channel.h"
#include "fiberthread/mutex.h"
#include "fiberthread/rw_lock.h"
#include "fiberthread/semaphore.h"
#include "fiberthread/wait_group.h"

using namespace fiberthread;

namespace {

// One fiber sends, and one receives. One operation is one value.
double send_receive(size_t capacity) {
  auto c = Channel<long>::make(capacity);
  return ns_each(400'000, [&](long n) {
    in_threads(2, [&](int who) {
      long v, sum = 0;
      if (who)
        for (long i = 0; i < n; i++) c.sender.send(i);
      else {
        for (long i = 0; i < n; i++) c.receiver.receive(v), sum += v;
        if (sum != n * (n - 1) / 2) abort();
      }
    });
  });
}

double send_receive_4x4() {
  auto c = Channel<long>::make(128);
  return ns_each(400'000, [&](long n) {
    in_threads(8, [&](int who) {
      long v;
      if (who % 2)
        for (long i = 0; i < n / 4; i++) c.sender.send(i);
      else
        for (long i = 0; i < n / 4; i++) c.receiver.receive(v);
    });
  });
}

double send_receive_alone() {
  auto c = Channel<long>::make(8);
  return ns_each(1'000'000, [&](long n) {
    long v;
    for (long i = 0; i < n; i++) {
      c.sender.send(i);
      c.receiver.receive(v);
    }
  });
}

// The other side sends to the eight channels in turn.
double select_8(size_t capacity) {
  std::vector<Channel<long>> c;
  for (int i = 0; i < 8; i++) c.push_back(Channel<long>::make(capacity));
  return ns_each(100'000, [&](long n) {
    in_threads(2, [&](int who) {
      long v;
      if (who) {
        for (long i = 0; i < n; i++) c[static_cast<size_t>(i % 8)].sender.send(i);
        return;
      }
      ReceiveCase c0(c[0].receiver, v), c1(c[1].receiver, v), c2(c[2].receiver, v), c3(c[3].receiver, v), c4(c[4].receiver, v),
          c5(c[5].receiver, v), c6(c[6].receiver, v), c7(c[7].receiver, v);
      for (long i = 0; i < n; i++) select(c0, c1, c2, c3, c4, c5, c6, c7);
    });
  });
}

double select_8_default() {
  std::vector<Channel<long>> c;
  for (int i = 0; i < 8; i++) c.push_back(Channel<long>::make(1));
  return ns_each(100'000, [&](long n) {
    long v;
    ReceiveCase c0(c[0].receiver, v), c1(c[1].receiver, v), c2(c[2].receiver, v), c3(c[3].receiver, v), c4(c[4].receiver, v),
        c5(c[5].receiver, v), c6(c[6].receiver, v), c7(c[7].receiver, v);
    for (long i = 0; i < n; i++) try_select(c0, c1, c2, c3, c4, c5, c6, c7);
  });
}

double semaphore_ping_pong() {
  Semaphore to(0), fro(0);
  return by_turns(
      200'000,
      [&](long) {
        to.release();
        fro.acquire();
      },
      [&](long) {
        to.acquire();
        fro.release();
      });
}

double condition_ping_pong() {
  Mutex m;
  ConditionVariable c;
  bool turn = false;
  auto step = [&](bool mine) {
    m.lock();
    c.wait(m, [&] { return turn == mine; });
    turn = !mine;
    c.notify_one();
    m.unlock();
  };
  return by_turns(100'000, [&](long) { step(false); }, [&](long) { step(true); });
}

double read_lock() {
  RwLock l;
  return ns_each(1'000'000, [&](long n) {
    for (long i = 0; i < n; i++) {
      l.lock_shared();
      l.unlock_shared();
    }
  });
}

double barrier_8() {
  Barrier b(8);
  return ns_each(80'000, [&](long n) {
    in_threads(8, [&](int) {
      for (long i = 0; i < n / 8; i++) b.arrive_and_wait();
    });
  });
}

CASE(
    "channel-unbuffered", [] { return send_receive(0); }, .goal = 100, .cpus = 1,
    .what = "a value from one fiber to another, without room");
CASE("channel-buffered", [] { return send_receive(128); }, .goal = 30, .cpus = 1, .what = "the same with room for 128");
CASE("channel-unbuffered-cpus", [] { return send_receive(0); }, .what = "a value from one fiber to another, without room, on all CPUs");
CASE("channel-buffered-cpus", [] { return send_receive(128); }, .what = "the same with room for 128");
CASE("channel-4x4-cpus", send_receive_4x4, .what = "the same with four senders and four receivers");
CASE("channel-alone", send_receive_alone, .what = "a send and a receive by the same fiber");
CASE(
    "select-8", [] { return select_8(0); }, .goal = 400, .cpus = 1,
    .what = "a select over eight channels without room, and the send to one of them");
CASE("select-8-buffered", [] { return select_8(1); }, .goal = 400, .cpus = 1, .what = "the same with room for one in each");
CASE("select-8-default", select_8_default, .what = "a select over eight channels, none of them ready, with default");
CASE("fifo-mutex-uncontended", lock_unlock<Mutex>, .what = "lock and unlock of a Mutex");
CASE("fifo-mutex-8", [] { return lock_unlock_8<Mutex>(); }, .what = "the same by eight at once");
CASE("semaphore-ping-pong", semaphore_ping_pong, .cpus = 1, .what = "a release, and the fiber that waits for it runs");
CASE("condition-ping-pong", condition_ping_pong, .cpus = 1, .what = "a notification, and the fiber that waits for it runs, with the mutex");
CASE("rwlock-read", read_lock, .what = "lock_shared and unlock_shared");
CASE("barrier-8", barrier_8, .what = "one of eight arrives and goes on");

}  // namespace
