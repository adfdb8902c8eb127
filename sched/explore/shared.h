// SPDX-License-Identifier: MIT
// What `fiberthread explore` and the explored process share: a memory file that the launcher makes and the library maps. The launcher writes
// the order of the schedule, the library the choices that it has made. The memory outlives the process, so nothing is lost by a crash.
#pragma once
#include <atomic>
#include <cstdint>

namespace fiberthread {

enum class Strategy : uint32_t {
  Script,  // follows Order::script, and elsewhere makes no switch that it need not make
  Random,  // a random walk: at each choice a random fiber. How often a fiber goes on is drawn once for each schedule
  Pct,     // priorities with `depth` - 1 changes (Burckhardt and others, ASPLOS 2010)
  Pos,     // a priority for each operation, drawn anew where operations race (Yuan, Yang, Gu, CAV 2018)
};

enum class ExploredEnd : uint32_t { None, Deadlock, Livelock };

constexpr uint32_t kExploreVersion = 2;
constexpr uint32_t kMostSteps = 1 << 16;
constexpr uint32_t kMostSeen = 1 << 12;

// One choice that was not the first candidate. All others are not written down.
struct Step {
  uint64_t choice;  // its number in the schedule, from 0
  uint32_t index;   // which candidate was chosen
  uint32_t of;      // how many there were
  uint32_t from;    // number of the fiber that could have gone on, or kNobody
  uint32_t to;      // number of the chosen fiber, or kClock
  uint64_t pc;      // the call that `from` was about to make, or has made: its return address
  uint64_t object;  // the first argument of that call
  char call[31];    // its name
  bool after;       // it was made already
  // A stop between two points, before an access to memory. `pc` is then the instruction and `object` the address, which is 0 if it is not known.
  // `after`: the instruction reads and then writes, and has read already. `accesses` is 0 in other steps.
  uint64_t window;    // the number of the window, from 0
  uint32_t accesses;  // the stop was before this one in the window, from 1
};
constexpr uint32_t kNobody = ~uint32_t{0}, kClock = kNobody - 1;

struct SeenFiber {
  uint64_t start;  // the function that it began in
  bool main;
  char name[16];
};

struct Explored {
  // Written by the launcher.
  struct Order {
    uint32_t version;
    Strategy strategy;
    uint64_t seed;
    uint32_t depth;
    uint32_t script_size;
    uint64_t expected;  // points that such a schedule has, for Pct
    uint64_t most;      // points after which it is a livelock
    uint32_t reports;   // a deadlock is reported, with stacks. Else the process only ends
    uint32_t memory;    // threads are stopped before accesses to memory, too
  } order;
  // Written by the library.
  std::atomic<uint64_t> points;  // calls where another fiber could have gone on. The launcher reads it while the process runs
  uint64_t choices;              // those with more than one candidate
  uint64_t hash;                 // of all choices
  uint64_t windows;              // places where a window could be opened
  uint64_t outside;              // events whose time is not ours: a fiber asleep in the kernel, a loop without a point
  ExploredEnd end;
  std::atomic<uint32_t> claimed;  // the process that was the first to make a thread. It is the one that is explored; 0: none
  uint32_t diverged, steps, fibers;
  Step script[kMostSteps];
  Step made[kMostSteps];
  SeenFiber seen[kMostSeen];
};

}  // namespace fiberthread
