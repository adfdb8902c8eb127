// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <string>

#include "preload/launcher/explore/run.h"

namespace fiberthread {

// Which schedules are run, and for how long.
struct Search {
  uint64_t seed = 1, most = UINT64_MAX;
  uint32_t depth = 3;
  bool bounded = false;
  Strategy only = Strategy::Script;  // Script: all in turn
  double time = -1, budget = 1e9;
  unsigned jobs = 1;
  std::string junit;
};

// Runs the program under one schedule after the other, and tells each failure. Returns the exit status.
int explore(RunSettings& s, const Search& search);

}  // namespace fiberthread
