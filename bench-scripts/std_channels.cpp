// SPDX-License-Identifier: MIT
// A queue as a program would write it with a mutex and condition variables.
#include <barrier>
#include <condition_variable>
#include <mutex>
#include <semaphore>
#include <shared_mutex>

#include "api.h"

namespace {

class Queue {
 public:
  // With capacity 0, the sender puts its value down and waits until the receiver has taken it.
  explicit Queue(size_t capacity) : ring_(capacity ? capacity : 1), rendezvous_(capacity == 0) {}
  void send(long v) {
    std::unique_lock<std::mutex> lock(m_);
    not_full_.wait(lock, [&] { return count_ < ring_.size(); });
    ring_[(first_ + count_++) % ring_.size()] = v;
    not_empty_.notify_one();
    uint64_t number = ++sent_;
    if (rendezvous_) taken_.wait(lock, [&] { return received_ >= number; });
  }
  long receive() {
    std::unique_lock<std::mutex> lock(m_);
    not_empty_.wait(lock, [&] { return count_ > 0; });
    long v = ring_[first_];
    first_ = (first_ + 1) % ring_.size();
    count_--;
    received_++;
    not_full_.notify_one();
    if (rendezvous_) taken_.notify_all();
    return v;
  }

 private:
  std::mutex m_;
  std::condition_variable not_full_, not_empty_, taken_;
  std::vector<long> ring_;
  size_t first_ = 0, count_ = 0;
  uint64_t sent_ = 0, received_ = 0;
  bool rendezvous_;
};

double send_receive(size_t capacity, int pairs, long n) {
  Queue q(capacity);
  return ns_each(n, [&](long all) {
    in_threads(2 * pairs, [&](int who) {
      for (long i = 0; i < all / pairs; i++) {
        if (who % 2) q.send(i);
        else q.receive();
      }
    });
  });
}

double send_receive_alone() {
  Queue q(8);
  return ns_each(1'000'000, [&](long n) {
    for (long i = 0; i < n; i++) {
      q.send(i);
      q.receive();
    }
  });
}

double semaphore_ping_pong() {
  std::counting_semaphore<> to(0), fro(0);
  return by_turns(
      20'000,
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
  std::mutex m;
  std::condition_variable c;
  bool turn = false;
  auto step = [&](bool mine) {
    std::unique_lock<std::mutex> lock(m);
    c.wait(lock, [&] { return turn == mine; });
    turn = !mine;
    c.notify_one();
  };
  return by_turns(20'000, [&](long) { step(false); }, [&](long) { step(true); });
}

double read_lock() {
  std::shared_mutex l;
  return ns_each(1'000'000, [&](long n) {
    for (long i = 0; i < n; i++) {
      l.lock_shared();
      l.unlock_shared();
    }
  });
}

double barrier_8() {
  std::barrier<> b(8);
  return ns_each(4'000, [&](long n) {
    in_threads(8, [&](int) {
      for (long i = 0; i < n / 8; i++) b.arrive_and_wait();
    });
  });
}

CASE("channel-unbuffered", [] { return send_receive(0, 1, 10'000); });
CASE("channel-buffered", [] { return send_receive(128, 1, 100'000); });
CASE("channel-unbuffered-cpus", [] { return send_receive(0, 1, 10'000); });
CASE("channel-buffered-cpus", [] { return send_receive(128, 1, 100'000); });
CASE("channel-4x4-cpus", [] { return send_receive(128, 4, 100'000); });
CASE("channel-alone", send_receive_alone);
CASE("fifo-mutex-uncontended", lock_unlock<std::mutex>);
CASE("fifo-mutex-8", [] { return lock_unlock_8<std::mutex>(); });
CASE("semaphore-ping-pong", semaphore_ping_pong);
CASE("condition-ping-pong", condition_ping_pong);
CASE("rwlock-read", read_lock);
CASE("barrier-8", barrier_8);

}  // namespace
