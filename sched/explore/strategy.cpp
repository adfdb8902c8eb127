// SPDX-License-Identifier: MIT
#include "sched/explore/strategy.h"

namespace fiberthread {

namespace {
constexpr uint64_t kHigh = uint64_t{1} << 63;  // drawn priorities are above, those of changes below
constexpr uint32_t kLengths = 9;               // windows have up to 2^0, 2^1, ... 2^8 accesses
// After so many points it is a random walk, which is fair: a program that goes on until some other thread has run comes to its end.
constexpr uint64_t kFair = 50'000;
constexpr uint32_t kLongStreak = 2000;  // a fiber that is chosen so often in a row, with others waiting, may wait for them itself
constexpr uint32_t kLongStreakOfAccesses = 20'000;  // what waits by accesses to memory gives way earlier (preload/explore/memory/races.cpp)
// After so many jumps of time, these become half as likely. Else threads that wake up again and again leave no turn to those of lower priority.
constexpr uint32_t kManyJumps = 64, kSeldom = 1 << 20;

// SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

}  // namespace

Strategies::Strategies(const Explored::Order& order, Candidate* table)
    : strategy_(order.strategy), state_(order.seed), lowest_(kHigh - 1), table_(table) {
  long_streak_ = order.memory & kMemoryPoints ? kLongStreakOfAccesses : kLongStreak;
  constexpr uint32_t kOneIn[] = {1, 1, 2, 4, 8, 16, 32}, kFixed = sizeof kOneIn / sizeof *kOneIn, kInAll = 3;
  // Most bugs need few switches at points where the thread could go on. So some schedules have 1, 2 or 4 of these. Not if they are so long that the
  // thread may go on for others, which must come then.
  constexpr uint64_t kSeldomest = 4096;
  uint64_t which = random() % (kFixed + kInAll), length = order.expected < kSeldomest ? order.expected : kSeldomest;
  one_in_ = which < kFixed ? kOneIn[which] : 1 + static_cast<uint32_t>(length >> (which - kFixed));
  by_kind_ = random() % 2;
  constexpr uint32_t kTimerOneIn[] = {3, 16, 100};
  timer_one_in_ = kTimerOneIn[random() % (sizeof kTimerOneIn / sizeof *kTimerOneIn)];
  constexpr uint32_t kYieldOneIn[] = {1, 2, 8};
  yield_one_in_ = kYieldOneIn[random() % (sizeof kYieldOneIn / sizeof *kYieldOneIn)];
  change_count_ = order.depth > kMostChanges ? kMostChanges : order.depth ? order.depth - 1 : 0;
  for (uint32_t i = 0; i < change_count_; i++) changes_[i] = 1 + random() % (order.expected ? order.expected : 1);
  if (!(order.memory & kMemorySteps)) return;
  constexpr uint32_t kWindows[] = {2, 8, 32, 128};
  window_one_in_ = 1 + order.expected / kWindows[random() % 4];
  window_lengths_ = 1 + static_cast<uint32_t>(random() % kLengths);
}

uint64_t Strategies::random() { return mixed(state_ += 0x9E3779B97F4A7C15u); }

Candidate& Strategies::of(FiberRecord* f) {
  Candidate* c = &table_[reinterpret_cast<uintptr_t>(f) / sizeof *f % kTable];  // records lie side by side, so few pages are touched
  while (c->fiber && c->fiber != f) c = c == &table_[kTable - 1] ? table_ : c + 1;
  if (!c->fiber && used_ == kTable / 2) {
    others_.fiber = f;
    return others_;
  }
  used_ += !c->fiber;
  if (!c->fiber || c->id != f->identity.serial) {
    *c = {};
    c->fiber = f;
    c->id = f->identity.serial;
    c->number = numbers_++;
    c->priority = random() | kHigh;
    c->drawn = true;
  }
  return *c;
}

Candidate& Strategies::arrive(FiberRecord* f, const ExplorePoint& point) {
  Candidate& c = of(f);
  c.call = point.call;
  c.object = point.object;
  c.pc = point.pc;
  c.after = point.after;
  c.drawn = false;
  c.points++;
  return c;
}

void Strategies::at_point(FiberRecord* f, const ExplorePoint& point) {
  Candidate& c = arrive(f, point);
  points_++;
  if (strategy_ != Strategy::Pct) return;
  for (uint32_t i = 0; i < change_count_; i++)
    if (changes_[i] == points_) c.priority = lowest_--;
}

void Strategies::at_stop(FiberRecord* f, const ExplorePoint& access) {
  Candidate& c = arrive(f, access);
  if (strategy_ == Strategy::Pct) c.priority = lowest_--;
}

// Most stops are soon after a point, where most of what races is, and some are far from it.
uint32_t Strategies::window() {
  if (random() % window_one_in_) return 0;
  uint32_t length = 1u << random() % window_lengths_;
  return 1 + static_cast<uint32_t>(random() % length);
}

void Strategies::gives_way(FiberRecord* f) {
  if (random() % yield_one_in_) return;
  Candidate& c = of(f);
  c.priority = lowest_--;
  c.drawn = true;
}

uint32_t Strategies::best(Candidate* const* candidates, uint32_t n) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < n; i++)
    if (candidates[i]->priority > candidates[best]->priority) best = i;
  return best;
}

uint32_t Strategies::one_of_a_kind(Candidate* const* candidates, uint32_t n) {
  uint64_t salt = random(), most = 0;
  uint32_t chosen = 0, alike = 0;
  for (uint32_t i = 0; i < n; i++) {
    const Candidate& c = *candidates[i];
    uint64_t start = reinterpret_cast<uint64_t>(c.start ? c.start : c.fiber->identity.start);
    uint64_t kind = mixed(mixed(start + c.after) ^ c.pc ^ salt);  // the kind with the largest number is chosen
    if (kind < most) continue;
    if (kind > most) alike = 0;
    most = kind;
    if (random() % ++alike == 0) chosen = i;
  }
  return chosen;
}

uint32_t Strategies::choose(Candidate* const* candidates, uint32_t n, bool first_goes_on, bool timer) {
  if (timer && random() % timer_one_in_ == 0) {
    if (++jumps_ % kManyJumps == 0 && timer_one_in_ < kSeldom) timer_one_in_ *= 2;
    return n;
  }
  if (n == 1) return 0;
  uint32_t chosen;
  if (strategy_ == Strategy::Random || points_ > kFair) {
    if (first_goes_on && random() % one_in_) chosen = 0;
    else chosen = by_kind_ ? one_of_a_kind(candidates, n) : static_cast<uint32_t>(random() % n);
  } else {
    if (strategy_ == Strategy::Pos)
      for (uint32_t i = 0; i < n; i++)
        if (!candidates[i]->drawn) {
          candidates[i]->priority = random() | kHigh;
          candidates[i]->drawn = true;
        }
    chosen = best(candidates, n);
    if (candidates[chosen]->fiber == last_ && last_streak_ >= long_streak_) {
      candidates[chosen]->priority = lowest_--;
      chosen = best(candidates, n);
    }
    // Of the operations that race with the chosen one, none shall have its place in the order because of an old draw.
    if (strategy_ == Strategy::Pos && candidates[chosen]->object)
      for (uint32_t i = 0; i < n; i++)
        if (i != chosen && candidates[i]->object == candidates[chosen]->object) candidates[i]->drawn = false;
  }
  return chosen;
}

uint32_t Strategies::usual(Candidate* const* candidates, uint32_t n, bool first_goes_on) const {
  return first_goes_on && n > 1 && candidates[0]->fiber == last_ && last_streak_ >= long_streak_ ? 1 : 0;
}

void Strategies::chosen(Candidate* const* candidates, uint32_t n, uint32_t index) {
  if (n < 2 || index == n) return;
  last_streak_ = candidates[index]->fiber == last_ ? last_streak_ + 1 : 0;
  last_ = candidates[index]->fiber;
}

}  // namespace fiberthread
