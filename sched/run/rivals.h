// SPDX-License-Identifier: MIT
// The decision how many slots are held back because other programs want the CPUs. It is given samples of what the process did, and times; it
// reads no clock. Sysmon's own.
#pragma once
#include <cstdint>

namespace fiberthread {

class SlotsHeldBack {
 public:
  // What all workers did since the process began.
  struct Sample {
    uint64_t at = 0;     // ns
    uint64_t done = 0;   // switches of fibers, and events that their waits for descriptors returned
    uint64_t taken = 0;  // times that the kernel took the CPU from one of them
    uint64_t used = 0;   // CPU time, ns
  };

  // Called at each look, with whether hogs are queued. Returns true if a sample is wanted now.
  bool wants_sample(uint64_t now, bool hogs);
  // Takes the sample. Returns how many of `slots` are to be held back from now on.
  uint32_t take(const Sample& s, uint32_t slots);
  // Holds nothing back, and forgets the measurement that has begun.
  void give_back();
  void reset() { *this = {}; }  // in a fork's child

 private:
  enum class Try : uint8_t { None, Fewer, More };
  static constexpr uint64_t kFirstPause = 2'000'000'000, kLongestPause = 16'000'000'000;  // ns from a try that has failed to the next

  void hold(uint32_t n, uint64_t now);
  void put_off(uint64_t now, uint64_t& pause);  // the next try, after one that has failed
  void decide(uint64_t now, uint32_t slots, uint64_t rate, uint64_t taken, uint64_t used);

  uint32_t held_ = 0;
  Try trying_ = Try::None;
  uint32_t looks_ = 0, hog_looks_ = 0;  // in this window: all, and those that found hogs queued
  uint32_t windows_ = 0;                // since the last change
  uint64_t settles_at_ = 0;             // 0: it has settled since the last change
  Sample begun_;                        // the window's beginning; at 0: none has begun
  uint64_t next_try_ = 0;
  // For each second. Of the windows since the last change, the newest with a weight of 1/8.
  uint64_t rate_ = 0, taken_ = 0, used_ = 0;
  uint64_t rate_before_ = 0;  // before the try
  uint64_t rate_of_all_ = 0;  // before the last try that began with all slots
  uint64_t pause_fewer_ = kFirstPause, pause_more_ = kFirstPause;
};

}  // namespace fiberthread
