// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "preload/launcher/explore/run.h"

namespace fiberthread {

// All schedules with at most so many preemptions, each once. A preemption is a choice of another thread, or of time, where one could have gone
// on. A schedule is the list of its unusual choices, and those that are reached from it have one more at a later place. All with fewer
// preemptions come first: iterative context bounding (Musuvathi, Qadeer, PLDI 2007).
class Bounded {
 public:
  explicit Bounded(uint32_t bound) : bound_(bound), todo_(bound + 1) {}
  // Takes a schedule that was run, with what it offered.
  void add(const Plan& plan, const Outcome& o);
  // Gives the next schedule that is not yet known. Returns false if there is none.
  bool next(Plan& plan);
  // Returns whether all that was offered has been taken in.
  bool complete() const { return complete_; }

 private:
  struct Node {
    uint32_t preemptions = 0;
    uint64_t from = 0;
    std::vector<Step> steps;
    std::vector<uint16_t> offered;  // from choice `from` on
  };
  struct Cursor {
    std::shared_ptr<Node> node;
    size_t at;
    uint32_t index;
    bool preempts;
  };

  static bool advance(Cursor& c);
  uint32_t bound_;
  bool complete_ = true;
  std::vector<std::vector<Cursor>> todo_;  // by preemptions
};

}  // namespace fiberthread
