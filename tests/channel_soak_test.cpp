// SPDX-License-Identifier: MIT
// Closing, cancelling and timing out at every point loses no value and no permit, and leaks nothing. CHANNEL_OPERATIONS=N sets the number
// of calls. `make soak` and builds with SANITIZE=address use many. Half of the threads are foreign kernel threads. Without
// FIBERTHREAD_CHAOS the test switches chaos on by itself.
// alone: sync
#include "fiberthread/channel.h"

#include "tests/test.h"

#include <errno.h>
#include <stdlib.h>

#include <atomic>
#include <memory>
#include <vector>

#include "sched/chaos.h"
#include "sync/channel_core.h"
#include "fiberthread/rw_lock.h"
#include "fiberthread/semaphore.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

// Only AddressSanitizer defines this.
extern "C" int __lsan_do_recoverable_leak_check() __attribute__((weak));

namespace {

constexpr size_t kThreads = 12;
constexpr int kChannels = 4;

// The value that is sent. It owns memory, and knows whether it is alive and whether it was received.
struct Value {
  static inline std::atomic<long> alive{0};
  std::unique_ptr<std::atomic<int>> received;  // null: moved from
  explicit Value(bool real = false) : received(real ? new std::atomic<int>(0) : nullptr) { alive++; }
  Value(Value&& o) noexcept : received(std::move(o.received)) { alive++; }
  Value& operator=(Value&& o) noexcept {
    received = std::move(o.received);
    return *this;
  }
  ~Value() { alive--; }
};

struct Table {  // the objects of one round
  std::vector<Channel<Value>> boxed;
  std::vector<Channel<std::unique_ptr<long>>> plain;
  Semaphore permits{3};
  RwLock lock;
  long guarded = 0;
};

struct Totals {
  std::atomic<long> sent{0}, received{0}, calls{0}, closed{0}, timed_out{0}, cancelled{0};
};

class User {
 public:
  User(size_t number, uint64_t round, Table& table, Totals& totals, std::atomic<FiberRecord*>* users)
      : random_{round * kThreads + number}, t_(table), totals_(totals), users_(users) {}

  void run(int calls) {
    for (int i = 0; i < calls; i++) {
      calls_++;
      switch (random_(16)) {
        case 0 ... 4: random_(2) ? send(boxed().sender, Value(true)) : send(plain().sender, std::make_unique<long>(1)); break;
        case 5 ... 9: random_(2) ? receive<Value>(boxed().receiver) : receive<std::unique_ptr<long>>(plain().receiver); break;
        case 10 ... 12: choose(); break;
        case 13: permit(); break;
        case 14:
          if (FiberRecord* f = users_[random_(kThreads)]) interrupt(f, kInterruptEnd);
          break;
        default:
          if (random_(16) == 0) random_(2) ? boxed().sender.close() : plain().receiver.close();
          else if (random_(2)) handles();
          else give_way();
      }
    }
  }
  // Clears a cancellation, so that the test can go on.
  void settle(int error) {
    switch (error) {
      case ECANCELED:
        totals_.cancelled++;
        self()->run.interrupts.fetch_and(~uint32_t{kInterruptEnd});
        break;
      case ETIMEDOUT: totals_.timed_out++; break;
      case ClosedChannel: totals_.closed++; break;
      default: cr_assert(error == 0 || error == EAGAIN, "error %d", error);
    }
  }
  long calls() const { return calls_; }

 private:
  Channel<Value>& boxed() { return t_.boxed[random_(kChannels)]; }
  Channel<std::unique_ptr<long>>& plain() { return t_.plain[random_(kChannels)]; }
  static bool full(const Value& v) { return v.received != nullptr; }
  static bool full(const std::unique_ptr<long>& v) { return v != nullptr; }
  static void mark(Value& v) { cr_assert_eq(v.received->fetch_add(1), 0); }
  static void mark(std::unique_ptr<long>& v) { cr_assert_eq((*v)++, 1); }
  uint64_t timeout() { return random_(random_(4) ? 20'000 : 300'000); }

  template <class T>
  void send(Sender<T>& tx, T v) {
    int e = random_(3) ? tx.send_for(std::move(v), timeout()) : tx.try_send(std::move(v));
    cr_assert(full(v) == (e != 0));
    if (e == 0) totals_.sent++;
    settle(e);
  }
  template <class T>
  void receive(Receiver<T>& rx) {
    T v{};
    int e = random_(3) ? rx.receive_for(v, timeout()) : rx.try_receive(v);
    cr_assert(full(v) == (e == 0));
    if (e == 0) {
      totals_.received++;
      mark(v);
    }
    settle(e);
  }
  void choose() {
    Value v;
    std::unique_ptr<long> p;
    ReceiveCase r1(boxed().receiver, v);
    ReceiveCase r2(plain().receiver, p);
    SendCase s1(boxed().sender, Value(true));
    SendCase s2(plain().sender, std::make_unique<long>(1));
    Selected s = random_(3) ? select_for(timeout(), r1, s1, r2, s2) : try_select(s2, r2, s1, r1);
    int done = full(v) + full(p) + !s1.has_value() + !s2.has_value();
    cr_assert_eq(done, s.index >= 0 && s.error == 0);
    if (full(v)) mark(v);
    if (full(p)) mark(p);
    totals_.received += full(v) + full(p);
    totals_.sent += !s1.has_value() + !s2.has_value();
    settle(s.error);
  }
  void permit() {
    if (int e = random_(2) ? t_.permits.acquire_for(timeout()) : t_.permits.acquire()) return settle(e);
    if (random_(2)) {
      if (int e = t_.lock.lock_for(timeout())) settle(e);
      else {
        t_.guarded++;
        t_.lock.unlock();
      }
    } else if (int e = t_.lock.lock_shared_for(timeout())) {
      settle(e);
    } else {
      long seen = t_.guarded;
      if (random_(4) == 0) give_way();
      cr_assert_eq(t_.guarded, seen);
      t_.lock.unlock_shared();
    }
    t_.permits.release();
  }
  // Makes a channel of its own with values in it, and closes its handles in any order.
  void handles() {
    auto c = Channel<Value>::make(random_(4));
    auto sender = c.sender;
    for (uint32_t n = random_(5); n; n--) settle(sender.try_send(Value(true)));
    if (random_(2)) c.receiver.reset();
    if (random_(2)) sender.reset();
    Receiver<Value> moved = std::move(c.receiver);
    Value v;
    if (moved) settle(moved.try_receive(v));
  }

  Random random_;
  Table& t_;
  Totals& totals_;
  std::atomic<FiberRecord*>* users_;
  long calls_ = 0;
};

template <class T>
long drain(std::vector<Channel<T>>& channels) {
  long n = 0;
  for (auto& c : channels) {
    c.sender.close();
    while (auto v = c.receiver.receive()) n++;
  }
  return n;
}

Test(channel_soak, loses_nothing_and_leaks_nothing, .timeout = 3600) {
  const char* wanted = getenv("CHANNEL_OPERATIONS");
  const long operations = wanted ? atol(wanted) : chaos_rounds(60'000);
  constexpr int kCalls = 60;
  if (!chaos_seed) chaos_seed = 1;
  std::unique_ptr<Table> table;
  Totals totals;
  std::atomic<FiberRecord*> users[kThreads] = {};
  std::atomic<bool> more{true};
  Rounds rounds(kThreads + 1);
  Threads t;
  for (size_t i = 0; i < kThreads; i++) {
    auto body = [&, i] {
      users[i] = self();
      for (uint64_t round = 0;; round++) {
        rounds.meet();
        if (!more) return;
        User user(i, round, *table, totals, users);
        user.run(kCalls);
        totals.calls += user.calls();
        rounds.meet();
        // No thread cancels any more.
        self()->run.interrupts.fetch_and(~uint32_t{kInterruptEnd});
      }
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
  for (long round = 0; totals.calls < operations; round++) {
    table = std::make_unique<Table>();
    channel_lock_free = round % 4 != 3;
    for (int c = 0; c < kChannels; c++) {
      table->boxed.push_back(Channel<Value>::make(static_cast<size_t>(c)));
      table->plain.push_back(Channel<std::unique_ptr<long>>::make(static_cast<size_t>((c + round) % 3)));
    }
    rounds.meet();
    rounds.meet();
    totals.received += drain(table->boxed) + drain(table->plain);
    cr_assert_eq(totals.sent, totals.received);
    cr_assert_eq(Value::alive, 0);
    cr_assert_eq(table->permits.available(), 3u);
    cr_assert(table->lock.try_lock());
    table->lock.unlock();
  }
  more = false;
  rounds.meet();
  t.join();
  channel_lock_free = true;
  table.reset();
  if (__lsan_do_recoverable_leak_check) cr_assert_eq(__lsan_do_recoverable_leak_check(), 0);
  if (wanted)
    fprintf(stderr, "%ld calls: %ld values sent and received; %ld found it closed, %ld timed out, %ld were cancelled\n",
            totals.calls.load(), totals.sent.load(), totals.closed.load(), totals.timed_out.load(), totals.cancelled.load());
  counted(totals.calls, "calls of channels, with select");
}

}  // namespace
