// SPDX-License-Identifier: MIT
// Is a recorded history linearizable? That is: could each call have happened at one instant between its begin and its end, so
// that a sequential object would have given the same results? (Herlihy, Wing, "Linearizability", TOPLAS 1990. The search is
// Wing's and Gong's, JPDC 1993, with Lowe's memory of what has been tried, CPE 2017.)
//
//     struct Call { enum { Send, Receive } what; int value; };      // a call, with its result
//     struct Model {                                                 // the sequential object, at its start
//       bool apply(const Call& c);      // could it be the next one, with that result? Then do it
//       std::string key() const;        // equal for equal states, and only for those
//     };
//     History<Call> history(threads);
//     history.run(thread, [&] { return Call{Call::Send, v}; });      // in each thread; the lambda makes the call
//     cr_assert(linearizable<Model>(history.calls()));
//
// A call that waits and then succeeds happens when it succeeds. One whose result leaves the next state open (a timed wait that gives
// up and is no operation) is a call that apply() allows in any state.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

constexpr uint64_t kPending = ~uint64_t{0};  // the end of a call that has not returned: it may have happened or not

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

  // By one thread at a time for each number. What make_call() returns is recorded as having happened meanwhile.
  template <class F>
  Call run(size_t thread, F make_call) {
    // One clock for all, which no two read at the same time: locked, so that the call stays between the two.
    uint64_t begin = clock_.fetch_add(1, std::memory_order_seq_cst);
    Call c = make_call();
    uint64_t end = clock_.fetch_add(1, std::memory_order_seq_cst);
    of_[thread].calls.push_back({c, begin, end, thread});
    return c;
  }
  // When all threads have ended.
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

// True if the history is linearizable. If not, says on stderr how far it got: the calls that it could not place are those to
// look at. `limit`: states tried; a search that needs more counts as a failure, since it proves nothing.
template <class Model, class Call>
bool linearizable(std::vector<Recorded<Call>> calls, Model model = Model(), size_t limit = 20'000'000) {
  std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  const size_t n = calls.size(), kNone = n;
  // Those not placed yet, in the order of their begins; index n is the list's end and its head.
  std::vector<size_t> next(n + 1), prev(n + 1);
  for (size_t i = 0; i <= n; i++) {
    next[i] = i == n ? 0 : i + 1;
    prev[i] = i == 0 ? n : i - 1;
  }
  std::vector<bool> placed(n);
  size_t left = 0, tried = 0;  // left: of the calls that have returned
  for (const auto& c : calls) left += c.end != kPending;
  const size_t returned = left;
  size_t fewest = left;
  std::vector<size_t> stuck;  // there: what could have come next

  struct Step {
    Model before;
    size_t call;
  };
  std::vector<Step> steps;
  std::unordered_set<std::string> seen;
  auto is_new = [&] {
    // The calls placed are all before the first that is not, and some after it.
    std::string key = std::to_string(next[n]) + ':';
    size_t last = n;
    while (last > next[n] && !placed[last - 1]) last--;
    for (size_t i = next[n]; i < last; i++) key += placed[i] ? '1' : '0';
    return seen.insert(key + ':' + model.key()).second;
  };

  size_t i = next[n];             // the next to try as the next one
  uint64_t first_end = kPending;  // of those not placed: who begins later cannot come before that one
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
    // Back: that call is not the next one after all. Those before it in the list were tried.
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
