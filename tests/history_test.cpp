// SPDX-License-Identifier: MIT
// Mutex, Channel and select are linearizable. The test records short histories of fibers and foreign kernel threads, and checks them.
// alone: sync
#include "fiberthread/channel.h"
#include "fiberthread/mutex.h"

#include "tests/test.h"

#include <errno.h>

#include <deque>
#include <string>

#include "sched/chaos.h"
#include "sync/channel_core.h"
#include "tests/linearize.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

constexpr size_t kThreads = 6;

// Runs body(thread, random) in all threads at once, in many rounds, and checks each round's history.
template <class Model, class Call, class Start, class Body>
void check_rounds(int rounds, Start start, Body body) {
  rounds = chaos_rounds(rounds);
  if (!chaos_seed) chaos_seed = 1;  // without chaos, most calls come one after the other
  for (int round = 0; round < rounds; round++) {
    History<Call> history(kThreads);
    auto object = start(round);
    Rounds together(kThreads);
    Threads t;
    for (size_t i = 0; i < kThreads; i++) {
      auto thread = [&, i] {
        Random random{static_cast<uint64_t>(round) * kThreads + i};
        together.meet();
        body(i, random, *object, history);
      };
      i % 2 ? t.kernel(thread) : t.fiber(thread);
    }
    t.join();
    cr_assert(linearizable<Model>(history.calls(), object->model()), "round %d", round);
  }
}

// ---- Mutex ----

struct MutexCall {
  enum { Lock, TryLock, Unlock } what;
  bool got;
};

struct MutexModel {
  bool held = false;
  bool apply(const MutexCall& c) {
    switch (c.what) {
      case MutexCall::Lock:
        if (held) return false;
        held = true;
        return true;
      case MutexCall::TryLock:
        if (c.got == held) return false;
        held = true;
        return true;
      default:
        if (!held) return false;
        held = false;
        return true;
    }
  }
  std::string key() const { return held ? "1" : "0"; }
};

struct MutexObject {
  Mutex m;
  MutexModel model() { return {}; }
};

Test(history, mutex_is_linearizable, .timeout = 120) {
  check_rounds<MutexModel, MutexCall>(
      400, [](int) { return std::make_unique<MutexObject>(); },
      [](size_t i, Random& random, MutexObject& o, History<MutexCall>& history) {
        for (int k = 0; k < 6; k++) {
          bool tries = random(2);
          bool got = history
                         .run(i,
                              [&] {
                                if (tries) return MutexCall{MutexCall::TryLock, o.m.try_lock()};
                                o.m.lock();
                                return MutexCall{MutexCall::Lock, true};
                              })
                         .got;
          if (random(4) == 0) give_way();
          if (got)
            history.run(i, [&] {
              o.m.unlock();
              return MutexCall{MutexCall::Unlock, true};
            });
        }
      });
}

// ---- Channel ----

struct ChannelCall {
  enum { Send, Receive, Close, Select } what;
  int error;
  int value;        // sent or received; of a select, what it tried to send and, if chosen, received
  int channel = 0;  // select: the index that was chosen, with its error
};

struct ChannelModel {
  size_t capacity = 0;
  std::deque<int> values;
  bool closed = false;
  int on_its_way = 0;  // a channel without room: sent, and received in the same moment

  bool apply(const ChannelCall& c) {
    if (on_its_way && !(c.what == ChannelCall::Receive && c.error == 0 && c.value == on_its_way)) return false;
    switch (c.what) {
      case ChannelCall::Close: closed = true; return true;
      case ChannelCall::Send:
        switch (c.error) {
          case 0:
            if (closed) return false;
            if (capacity == 0) on_its_way = c.value;
            else if (values.size() < capacity) values.push_back(c.value);
            else return false;
            return true;
          case EPIPE: return closed;
          case EAGAIN: return !closed && values.size() == capacity;
          default: return c.error == ETIMEDOUT;
        }
      default:
        switch (c.error) {
          case 0:
            if (on_its_way) on_its_way = 0;
            else if (!values.empty() && values.front() == c.value) values.pop_front();
            else return false;
            return true;
          case EPIPE: return closed && values.empty();
          case EAGAIN: return !closed && values.empty();
          default: return c.error == ETIMEDOUT;
        }
    }
  }
  std::string key() const {
    std::string k = closed ? "c" : "o";
    for (int v : values) k += std::to_string(v) + ',';
    return k + ';' + std::to_string(on_its_way);
  }
};

struct ChannelObject {
  Channel<int> c;
  ChannelModel model() {
    ChannelModel m;
    m.capacity = c.sender.capacity();
    return m;
  }
};

void channel_body(size_t i, Random& random, ChannelObject& o, History<ChannelCall>& history, bool closes) {
  for (int k = 0; k < 6; k++) {
    int v = static_cast<int>(i) * 100 + k + 1;
    if (closes && random(16) == 0)
      history.run(i, [&] {
        o.c.sender.close();
        return ChannelCall{ChannelCall::Close, 0, 0};
      });
    // There are as many sends as receives, so that few have to give up.
    if (random(2)) {
      history.run(i, [&] {
        int e = random(3) ? o.c.sender.send_for(v, random(300'000)) : o.c.sender.try_send(v);
        return ChannelCall{ChannelCall::Send, e, v};
      });
    } else {
      history.run(i, [&] {
        int got = 0;
        int e = random(3) ? o.c.receiver.receive_for(got, random(300'000)) : o.c.receiver.try_receive(got);
        return ChannelCall{ChannelCall::Receive, e, got};
      });
    }
  }
}

void check_channel(bool lock_free) {
  channel_lock_free = lock_free;
  check_rounds<ChannelModel, ChannelCall>(
      500, [](int round) { return std::make_unique<ChannelObject>(ChannelObject{Channel<int>::make(static_cast<size_t>(round / 2 % 4))}); },
      [](size_t i, Random& random, ChannelObject& o, History<ChannelCall>& history) { channel_body(i, random, o, history, random(2)); });
  channel_lock_free = true;
}

Test(history, channel_is_linearizable, .timeout = 120) { check_channel(true); }
Test(history, channel_with_its_lock_alone_is_linearizable, .timeout = 120) { check_channel(false); }

// ---- select ----

// Two channels with room. A select has a case to receive from one and a case to send to the other.
struct SelectModel {
  ChannelModel channels[2];
  bool apply(const ChannelCall& c) {
    int from = c.what == ChannelCall::Select ? c.channel & 1 : 0;
    ChannelModel &a = channels[from], &b = channels[1 - from];
    switch (c.error) {
      case 0:
      case EPIPE: return c.channel & 2 ? b.apply({ChannelCall::Send, c.error, c.value}) : a.apply({ChannelCall::Receive, c.error, c.value});
      case EAGAIN: return a.apply({ChannelCall::Receive, EAGAIN, 0}) && b.apply({ChannelCall::Send, EAGAIN, 0});
      default: return c.error == ETIMEDOUT;
    }
  }
  std::string key() const { return channels[0].key() + '|' + channels[1].key(); }
};

struct SelectObject {
  Channel<int> c[2];
  SelectModel model() {
    SelectModel m;
    for (int i = 0; i < 2; i++) m.channels[i].capacity = c[i].sender.capacity();
    return m;
  }
};

Test(history, select_is_linearizable, .timeout = 120) {
  check_rounds<SelectModel, ChannelCall>(
      500,
      [](int round) {
        auto n = static_cast<size_t>(round % 3 + 1);
        return std::make_unique<SelectObject>(SelectObject{{Channel<int>::make(n), Channel<int>::make(1)}});
      },
      [](size_t i, Random& random, SelectObject& o, History<ChannelCall>& history) {
        for (int k = 0; k < 5; k++) {
          int v = static_cast<int>(i) * 100 + k + 1;
          int from = static_cast<int>(random(2));
          history.run(i, [&] {
            int got = 0;
            ReceiveCase r(o.c[from].receiver, got);
            SendCase s(o.c[1 - from].sender, v);
            Selected chosen = random(3) ? select_for(random(300'000), r, s) : try_select(s, r);
            if (!s.has_value()) return ChannelCall{ChannelCall::Select, 0, v, from | 2};
            return ChannelCall{ChannelCall::Select, chosen.error, got, from};
          });
          // Other calls, which take the lock-free path. A call that did nothing is left out, like a timeout.
          int other = static_cast<int>(random(2));
          for (uint32_t n = random(3); n; n--)
            history.run(i, [&] {
              int got = 0, u = v + 50;
              bool sends = random(2);
              int e = sends ? o.c[1 - other].sender.try_send(u) : o.c[other].receiver.try_receive(got);
              if (e) return ChannelCall{ChannelCall::Select, ETIMEDOUT, 0, 0};
              return ChannelCall{ChannelCall::Select, 0, sends ? u : got, sends ? other | 2 : other};
            });
        }
      });
}

}  // namespace
