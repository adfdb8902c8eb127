// SPDX-License-Identifier: MIT
// Is a recorded history linearizable? In other words: could each call have happened at one instant between its begin and its end, with
// the results that a sequential object would have given? (Herlihy, Wing, "Linearizability", TOPLAS 1990. The search is
// Wing's and Gong's, JPDC 1993, with Lowe's memory of what has been tried, CPE 2017.)
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
// A call that waits and then succeeds happens when it succeeds. apply() must allow a call in any state if its result leaves the next
// state open, as a timed wait that gives up.
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

  // Records what make_call() returns as a call that happened meanwhile. One thread at a time may use a number.
  template <class F>
  Call run(size_t thread, F make_call) {
    // All threads share one clock, and no two reads of it are equal. The locked instruction keeps the call between its two reads.
    uint64_t begin = clock_.fetch_add(1, std::memory_order_seq_cst);
    Call c = make_call();
    uint64_t end = clock_.fetch_add(1, std::memory_order_seq_cst);
    of_[thread].calls.push_back({c, begin, end, thread});
    return c;
  }
  // Returns all calls, when all threads have ended.
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

// The search: places calls one after another, and goes back when none of the rest could come next.
template <class Model, class Call>
class LinearSearch {
 public:
  LinearSearch(std::vector<Recorded<Call>> calls, Model model, size_t limit)
      : calls_(std::move(calls)), model_(std::move(model)), limit_(limit), n_(calls_.size()), next_(n_ + 1), prev_(n_ + 1), placed_(n_) {
    std::sort(calls_.begin(), calls_.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (size_t i = 0; i <= n_; i++) {
      next_[i] = i == n_ ? 0 : i + 1;
      prev_[i] = i == 0 ? n_ : i - 1;
    }
    for (const auto& c : calls_) left_ += c.end != kPending;
    returned_ = fewest_ = left_;
  }

  bool run() {
    size_t i = next_[n_];  // the call to try next
    first_end_ = kPending;
    while (left_ > 0) {
      if (i != n_ && calls_[i].begin < first_end_) {
        first_end_ = std::min(first_end_, calls_[i].end);
        if (!place(i)) {
          i = next_[i];
          continue;
        }
        if (++tried_ > limit_) {
          fprintf(stderr, "linearizable(): gave up after %zu states, %zu of %zu calls placed\n", limit_, returned_ - fewest_, returned_);
          return false;
        }
        i = next_[n_];
        first_end_ = kPending;
        note_progress();
      } else if (steps_.empty()) {
        print_stuck();
        return false;
      } else {
        i = next_[take_back()];
      }
    }
    return true;
  }

 private:
  struct Step {
    Model before;
    size_t call;
  };

  void remove(size_t i) {
    placed_[i] = true;
    next_[prev_[i]] = next_[i];
    prev_[next_[i]] = prev_[i];
  }
  void put_back(size_t i) {
    placed_[i] = false;
    next_[prev_[i]] = prev_[next_[i]] = i;
  }

  // Returns true if the search has not been here before: at these placed calls, with the state that they lead to.
  bool is_new() {
    // The placed calls are all calls before the first one not placed, and some after it.
    std::string key = std::to_string(next_[n_]) + ':';
    size_t last = n_;
    while (last > next_[n_] && !placed_[last - 1]) last--;
    for (size_t i = next_[n_]; i < last; i++) key += placed_[i] ? '1' : '0';
    return seen_.insert(key + ':' + model_.key()).second;
  }

  // Places the call as the next one, if it could be, and if that leads to something new.
  bool place(size_t i) {
    Model before = model_;
    if (model_.apply(calls_[i].call)) {
      remove(i);
      if (is_new()) {
        left_ -= calls_[i].end != kPending;
        steps_.push_back({std::move(before), i});
        return true;
      }
      put_back(i);
    }
    model_ = std::move(before);
    return false;
  }

  // Takes the last call back: it is not the next one after all. The calls before it in the list have been tried. Returns the call.
  size_t take_back() {
    size_t back = steps_.back().call;
    model_ = std::move(steps_.back().before);
    steps_.pop_back();
    put_back(back);
    left_ += calls_[back].end != kPending;
    first_end_ = kPending;
    for (size_t k = next_[n_];; k = next_[k]) {
      first_end_ = std::min(first_end_, calls_[k].end);
      if (k == back) break;
    }
    return back;
  }

  // If the search has got further than ever before, notes which calls could come next.
  void note_progress() {
    if (left_ >= fewest_) return;
    fewest_ = left_;
    stuck_.clear();
    uint64_t end = kPending;
    for (size_t k = next_[n_]; k != n_ && calls_[k].begin < end; k = next_[k]) {
      end = std::min(end, calls_[k].end);
      stuck_.push_back(k);
    }
  }
  void print_stuck() const {
    fprintf(stderr, "linearizable(): no. At most %zu of %zu calls in a row; then none of these could come next:\n", returned_ - fewest_,
            returned_);
    for (size_t k : stuck_)
      fprintf(stderr, "  call %zu of thread %zu, from %lld to %lld\n", k, calls_[k].thread, static_cast<long long>(calls_[k].begin),
              static_cast<long long>(calls_[k].end));
  }

  std::vector<Recorded<Call>> calls_;
  Model model_;
  const size_t limit_, n_;
  std::vector<size_t> next_, prev_;  // the calls not placed, ordered by their begins; index n_ is the list's end and its head
  std::vector<bool> placed_;
  std::vector<Step> steps_;
  std::unordered_set<std::string> seen_;
  std::vector<size_t> stuck_;                        // where the search has got furthest: the calls that could have come next
  size_t left_ = 0, returned_, fewest_, tried_ = 0;  // left_ and returned_: of the calls that have returned
  uint64_t first_end_ = kPending;  // of the calls not placed that were tried: no call that begins later can come before that one
};

// Returns whether the history is linearizable. If it is not, prints on stderr how far the search got, and the calls that it could not
// place. `limit`: the number of states to try. A search that needs more counts as a failure, since it proves nothing.
template <class Model, class Call>
bool linearizable(std::vector<Recorded<Call>> calls, Model model = Model(), size_t limit = 20'000'000) {
  return LinearSearch<Model, Call>(std::move(calls), std::move(model), limit).run();
}
