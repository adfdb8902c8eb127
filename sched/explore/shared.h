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

enum class ExploredEnd : uint32_t { None, Deadlock, Livelock, Race };

// Order::memory. Accesses to memory that the program tells of are points too; a data race among them ends the run as a failure; fibers are
// stopped before accesses by single steps.
constexpr uint32_t kMemoryPoints = 1, kMemoryRaces = 2, kMemorySteps = 4;

constexpr uint32_t kExploreVersion = 5;
constexpr uint32_t kMostSteps = 1 << 16;
constexpr uint32_t kMostSeen = 1 << 12;
constexpr uint32_t kMostOffered = 1 << 18;

// One choice that was not the usual candidate (Strategies::usual()). All others are not written down.
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
  uint64_t window;     // the number of the window, from 0
  uint32_t accesses;   // the stop was before this one in the window, from 1
  uint32_t last, own;  // the fiber that went on last before, and how many points it had come to
};
constexpr uint32_t kNobody = ~uint32_t{0}, kClock = kNobody - 1;

struct SeenFiber {
  uint64_t start;  // the function that it began in
  uint64_t pc;     // its last point: the return address of that call
  bool main;
  char name[16];
};

// Two accesses to the same bytes of memory by two fibers, at least one of them no read, which nothing orders.
struct RacingAccess {
  uint64_t address, pc;  // pc: a return address
  uint32_t size, fiber;  // fiber: its number
  uint32_t write, atomic, frees;
};
struct Race {
  RacingAccess first, second;  // `second` was about to be made
};

// What the library that sees accesses to memory knows of a fiber. All 0 for the stack and the block of main.
struct ExploredFiber {
  uint32_t number;
  uint64_t stack_low, stack_high;
  uint64_t block_low, block_high;  // thread-local variables, and mostly the stack
};

struct Explored {
  // The process that stays at its first thread and is forked for each schedule, see preload/explore/server.cpp.
  struct Server {
    int32_t root, launcher;           // the process that may be one, written by itself; and who gets SIGCHLD when a run has ended
    uint64_t out, err;                // inodes of the program's stdout and stderr
    std::atomic<uint32_t> wanted;     // runs that the launcher has asked for; a futex
    std::atomic<uint32_t> ended;      // runs that have ended
    std::atomic<uint32_t> serves;     // 1 once it is the server
    int32_t child, status;            // the last run's process, and its status as waitpid() gives it
    uint64_t out_before, err_before;  // what the program had written before its first thread
  } server;
  // Written by the launcher for each run. All from here to `script` is 0 before.
  struct Order {
    uint32_t version;
    Strategy strategy;
    uint64_t seed;
    uint32_t depth;
    uint32_t script_size;
    uint64_t expected;  // points that such a schedule has, for Pct
    uint64_t most;      // points after which it is a livelock
    uint32_t reports;   // a deadlock is reported, with stacks. Else the process only ends
    uint32_t loose;     // the script's steps are found by `from`, `last`, `own` and `to`, and those that do not come are left out
    uint32_t log;       // all choices are written to `offered`
    uint32_t memory;    // kMemoryPoints and its kin
    uint32_t sysmon;    // it starts with the first thread
    uint64_t timers;    // ns. A timer that is due later does not fire before all others have had their turns
  } order;
  // Written by the library.
  std::atomic<uint64_t> points;  // calls where another fiber could have gone on. The launcher reads it while the process runs
  uint64_t choices;              // those with more than one candidate
  uint64_t hash;                 // of all choices
  uint64_t windows;              // places where a window could be opened
  uint64_t outside;              // events whose time is not ours: a fiber asleep in the kernel, a loop without a point
  ExploredEnd end;
  std::atomic<uint32_t> claimed;     // the process that was the first to make a thread. It is the one that is explored; 0: none
  std::atomic<uint32_t> has_sysmon;  // 1 once sysmon runs. The launcher then leaves to it what sleeps
  uint32_t diverged, steps, fibers;
  uint32_t last;  // number of the fiber that was the last one at a point
  Race race;
  Step script[kMostSteps];
  Step made[kMostSteps];
  SeenFiber seen[kMostSeen];
  uint16_t offered[kMostOffered];  // of each choice: how many candidates there were, and these bits
};
constexpr uint16_t kOfferedTime = 1 << 15;    // time could have gone on instead
constexpr uint16_t kOfferedStay = 1 << 14;    // the first candidate was at a point and could go on
constexpr uint16_t kOfferedSecond = 1 << 13;  // the usual candidate was the second one
constexpr uint16_t kOfferedCount = (1 << 13) - 1;

}  // namespace fiberthread
