// SPDX-License-Identifier: MIT
// Checks whether a recorded history is linearizable: whether each call could have happened at one instant between its begin and its end, so
// that a sequential object would have given the same results. (Herlihy, Wing, "Linearizability", TOPLAS 1990. The search is
// Wing's and Gong's, JPDC 1993, with Lowe's memory of the states that were tried, CPE 2017.)
//
//     struct Call { enum { Send, Receive } what; int value; };      // a call, with its result
//     struct Model {                                                 // the sequential object, at its start
//       bool apply(const Call& c);      // returns whether c could be the next call, with that result, and if so does it
//       std::string key() const;        // equal for equal states, and only for those
//     };
//     History<Call> history(threads);
//     history.run(thread, [&] { return Call{Call::Send, v}; });      // in each thread; the lambda makes the call
//     cr_assert(linearizable<Model>(history.calls()));
//
// A call that waits and then succeeds happens when it succeeds. For a timed wait that gives up, which is no operation, apply() returns true
// in any state.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

constexpr uint64_t kPending = ~uint64_t{0};  // the end of a call that has not returned: it may have happened or may not have

template <class Call>
struct Recorded {
  Call call;
  uint64_t begin, end;
  size_t thread;
};

template <class Call>
class History {
 public:
  explicit History(size_t threads) : of_(threads) {}

  // Calls make_call(), and records its result as a call that happened meanwhile. Only one thread at a time may use each `thread` number.
  template <class F>
  Call run(size_t thread, F make_call) {
    // All threads use one clock, and each reading is unique. The locked instructions keep the call between the two readings.
    uint64_t begin = clock_.fetch_add(1, std::memory_order_seq_cst);
    Call c = make_call();
    uint64_t end = clock_.fetch_add(1, std::memory_order_seq_cst);
    of_[thread].calls.push_back({c, begin, end, thread});
    return c;
  }
  // Returns all calls. May be called only when all threads have ended.
  std::vector<Recorded<Call>> calls() const {
    std::vector<Recorded<Call>> all;
    for (const auto& one : of_) all.insert(all.end(), one.calls.begin(), one.calls.end());
    return all;
  }

 private:
  struct alignas(64) One {
    std::vector<Recorded<Call>> calls;
  };
  std::atomic<uint64_t> clock_{0};
  std::vector<One> of_;
};

// Returns true if the history is linearizable. If not, prints on stderr how far the search got, and the calls that it could not place.
// `limit` is the most states to try. A search that needs more counts as a failure, since it proves nothing.
template <class Model, class Call>
bool linearizable(std::vector<Recorded<Call>> calls, Model model = Model(), size_t limit = 20'000'000) {
  std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  const size_t n = calls.size(), kNone = n;
  // A list of the calls that are not placed yet, in the order of their begins. Index n is the list's end and its head.
  std::vector<size_t> next(n + 1), prev(n + 1);
  for (size_t i = 0; i <= n; i++) {
    next[i] = i == n ? 0 : i + 1;
    prev[i] = i == 0 ? n : i - 1;
  }
  std::vector<bool> placed(n);
  size_t left = 0, tried = 0;  // left: calls that have returned and are not placed
  for (const auto& c : calls) left += c.end != kPending;
  const size_t returned = left;
  size_t fewest = left;
  std::vector<size_t> stuck;  // candidates for the next call, in the state with the fewest calls left

  struct Step {
    Model before;
    size_t call;
  };
  std::vector<Step> steps;
  std::unordered_set<std::string> seen;
  auto is_new = [&] {
    // The placed calls are all calls before the first one that is not placed, and some calls after that.
    std::string key = std::to_string(next[n]) + ':';
    size_t last = n;
    while (last > next[n] && !placed[last - 1]) last--;
    for (size_t i = next[n]; i < last; i++) key += placed[i] ? '1' : '0';
    return seen.insert(key + ':' + model.key()).second;
  };

  size_t i = next[n];             // the call to try now as the next one
  uint64_t first_end = kPending;  // earliest end of the calls not placed: a call that begins later cannot come next
  while (left > 0) {
    if (i != kNone && calls[i].begin < first_end) {
      first_end = std::min(first_end, calls[i].end);
      Model before = model;
      if (model.apply(calls[i].call)) {
        placed[i] = true;
        next[prev[i]] = next[i];
        prev[next[i]] = prev[i];
        if (is_new()) {
          if (++tried > limit) {
            fprintf(stderr, "linearizable(): gave up after %zu states, %zu of %zu calls placed\n", limit, returned - fewest, returned);
            return false;
          }
          left -= calls[i].end != kPending;
          steps.push_back({std::move(before), i});
          i = next[n];
          first_end = kPending;
          if (left < fewest) {
            fewest = left;
            stuck.clear();
            uint64_t end = kPending;
            for (size_t k = i; k != kNone && calls[k].begin < end; k = next[k]) {
              end = std::min(end, calls[k].end);
              stuck.push_back(k);
            }
          }
          continue;
        }
        placed[i] = false;
        next[prev[i]] = prev[next[i]] = i;
      }
      model = std::move(before);
      i = next[i];
      continue;
    }
    if (steps.empty()) {
      fprintf(stderr, "linearizable(): no. At most %zu of %zu calls in a row; then none of these could come next:\n", returned - fewest,
              returned);
      for (size_t k : stuck)
        fprintf(stderr, "  call %zu of thread %zu, from %lld to %lld\n", k, calls[k].thread, static_cast<long long>(calls[k].begin),
                static_cast<long long>(calls[k].end));
      return false;
    }
    // Take the last step back: that call is not the next one after all. The calls before it in the list have been tried.
    size_t back = steps.back().call;
    model = std::move(steps.back().before);
    steps.pop_back();
    placed[back] = false;
    next[prev[back]] = prev[next[back]] = back;
    left += calls[back].end != kPending;
    first_end = kPending;
    for (size_t k = next[n];; k = next[k]) {
      first_end = std::min(first_end, calls[k].end);
      if (k == back) break;
    }
    i = next[back];
  }
  return true;
}
