// SPDX-License-Identifier: MIT
#include "preload/launcher/explore/bounded.h"

#include <algorithm>

namespace fiberthread {

void Bounded::add(const Plan& plan, const Outcome& o) {
  auto node = std::make_shared<Node>();
  node->preemptions = plan.preemptions;
  for (auto& step : plan.script) node->steps.push_back(step);
  node->from = plan.script.empty() ? 0 : plan.script.back().choice + 1;
  node->offered.assign(o.offered.begin() + static_cast<ptrdiff_t>(std::min<size_t>(node->from, o.offered.size())), o.offered.end());
  complete_ = complete_ && o.complete && o.offered.size() == o.choices;
  todo_[node->preemptions].push_back({node, 0, 0, false});
  if (node->preemptions < bound_) todo_[node->preemptions + 1].push_back({node, 0, 0, true});
}

bool Bounded::next(Plan& plan) {
  for (uint32_t n = 0; n <= bound_; n++)
    while (!todo_[n].empty()) {
      Cursor& c = todo_[n].back();
      if (advance(c)) {
        plan = scripted(c.node->steps);
        Step step{};
        step.choice = c.node->from + c.at;
        step.index = c.index++;
        plan.script.push_back(step);
        plan.preemptions = n;
        plan.log = true;
        return plan.script.size() < kMostSteps;
      }
      todo_[n].pop_back();
    }
  return false;
}

// Moves to the next alternative that preempts, or to the next that does not. False if there is none.
bool Bounded::advance(Cursor& c) {
  for (; c.at < c.node->offered.size(); c.at++, c.index = 0) {
    uint16_t offer = c.node->offered[c.at];
    uint32_t n = offer & kOfferedCount, limit = n + (offer & kOfferedTime ? 1 : 0), usual = offer & kOfferedSecond ? 1 : 0;
    for (; c.index < limit; c.index++) {
      bool preempts = c.index == n || ((offer & kOfferedStay) && c.index > 0);
      if (c.index != usual && preempts == c.preempts) return true;
    }
  }
  return false;
}

}  // namespace fiberthread
