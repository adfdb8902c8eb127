// SPDX-License-Identifier: MIT
// What an exploration has found, in the forms in which it is told.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "preload/launcher/explore/run.h"

namespace fiberthread {

struct Result {
  struct Failure {
    Verdict verdict;
    std::string place, file, text;  // a place in the program; the file for replay, or ""; what was told
  };
  uint64_t runs = 0, forked = 0, distinct = 0, longest = 0;  // longest: points of a schedule
  uint64_t fingerprint = 0;                                  // of all schedules, in whatever order they ended
  bool all_done = false;                                     // all schedules within the bound have been run
  double seconds = 0;
  std::vector<Failure> failures;
};

// One line on stdout.
void put_json(const Result& r);
void put_summary(const Result& r);
// One test case, as JUnit's readers know it. Returns false if it cannot be written; errno says why.
bool write_junit(const Result& r, const std::string& path, const std::vector<std::string>& command);

// Returns the last lines of a text.
std::string tail(const std::string& text, size_t lines);
std::string indented(const std::string& text);

}  // namespace fiberthread
