// SPDX-License-Identifier: MIT
// The strategies that choose schedules. They are given candidates and draw numbers from a seed. They know no scheduler.
#pragma once
#include <cstdint>

#include "sched/explore/explore.h"

namespace fiberthread {

// All zero: not in use. So the table needs no initialization, which would touch all of its pages.
struct Candidate {
  FiberRecord* fiber;
  uint32_t id;      // tells apart the fibers that have this record in turn
  uint32_t number;  // in the order in which they were first seen
  uint64_t priority;
  const char* call;  // what it is about to do; null: it has begun or ended a wait
  uint64_t object, pc;
  bool after;             // it has done it
  bool drawn;             // `priority` is of this operation
  uint32_t points;        // that it has come to
  void* (*start)(void*);  // what identity.start was, before explored_start()
};

class Strategies {
 public:
  static constexpr uint32_t kTable = 1 << 16;
  Strategies(const Explored::Order& order, Candidate* table);  // kTable of them, all zero

  Candidate& of(FiberRecord* f);
  void at_point(FiberRecord* f, const ExplorePoint& point);
  void at_stop(FiberRecord* f, const ExplorePoint& access);
  void gives_way(FiberRecord* f);
  // Returns before which access the fiber is stopped that is about to go on, or 0.
  uint32_t window();
  // Chooses among n > 0. With `first_goes_on`, the first is at a point and could go on. With `timer`, n may be chosen: time passes.
  uint32_t choose(Candidate* const* candidates, uint32_t n, bool first_goes_on, bool timer);
  // Returns the candidate that a script need not name. That is the first one. If the first one has gone on for long, it may wait in a loop for
  // the others, so it is the second one then.
  uint32_t usual(Candidate* const* candidates, uint32_t n, bool first_goes_on) const;
  const Candidate* last() { return last_ ? &of(last_) : nullptr; }
  void chosen(Candidate* const* candidates, uint32_t n, uint32_t index);

 private:
  static constexpr uint32_t kMostChanges = 64;
  uint64_t random();
  Candidate& arrive(FiberRecord* f, const ExplorePoint& point);
  uint32_t best(Candidate* const* candidates, uint32_t n);
  // Draws among the kinds of candidates, and then among those of that kind: threads with the same function that are at the same place. So the
  // only thread of its kind comes as often as a hundred others together.
  uint32_t one_of_a_kind(Candidate* const* candidates, uint32_t n);

  Strategy strategy_;
  uint64_t state_;
  // Drawn once for a schedule. Random: the first goes on unless a draw of one in so many says otherwise. All: time jumps as often. Pct, Pos: one yield in
  // so many puts its fiber behind all others, since a loop of yields must end, but not each, since the others need not come first.
  uint32_t one_in_ = 1;
  bool by_kind_ = false;
  uint32_t timer_one_in_ = 1;
  uint32_t yield_one_in_ = 1;
  uint64_t window_one_in_ = 1;   // of the places where a window could be opened
  uint32_t window_lengths_ = 1;  // of windows: so many powers of 2
  uint64_t lowest_;              // Pct: priorities given by changes and yields go down from here
  uint64_t points_ = 0, changes_[kMostChanges];
  uint32_t change_count_ = 0;
  FiberRecord* last_ = nullptr;
  uint32_t last_streak_ = 0, long_streak_;
  uint32_t jumps_ = 0;  // of time, by choice
  uint32_t numbers_ = 0;
  Candidate* table_;    // by the record's address
  uint32_t used_ = 0;   // of the table
  Candidate others_{};  // stands for all fibers that find no place there
};

}  // namespace fiberthread
