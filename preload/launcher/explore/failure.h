// SPDX-License-Identifier: MIT
// A failure that was found: what it needs, in words, and its file.
#pragma once
#include <string>
#include <vector>

#include "preload/launcher/explore/run.h"

namespace fiberthread {

// Leaves out what the failure does not need: delta debugging (Zeller, Hildebrandt, IEEE TSE 28(2), 2002) on the steps. Ends at `until`.
Outcome shrink(Job& job, const RunSettings& s, Outcome best, double until);

struct Told {
  std::vector<std::string> lines;  // for each step, what was switched, and where
  std::vector<std::string> race;   // the two accesses, if the failure is a data race
  std::string place;               // where the last call before the failure was made, if that is known
};
// Runs the schedule once more, and looks into the process at its end. `failure` gets what the process has written, if that fails again.
Told tell(Job& job, const RunSettings& s, Outcome& failure);

struct Recorded {
  std::vector<Step> steps;
  Verdict verdict;
  uint64_t fingerprint = 0, choices = 0, hash = 0;
  std::string directory;
};

// Tells one program's file from another: FNV-1a.
uint64_t fingerprint(const std::string& path);
bool write_file(const std::string& path, const RunSettings& s, const Outcome& o, const Plan& plan, const Told& told);
// Ends with a message if that is no such file.
void read_recorded(const char* path, RunSettings& s, Recorded& r);

}  // namespace fiberthread
