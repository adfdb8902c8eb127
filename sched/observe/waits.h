// SPDX-License-Identifier: MIT
// Which fiber waits for which: for the verdict of a deadlock, for the watch for cycles, and for reports. No libc lock, no memory allocation. Fibers may
// run meanwhile, so what is read of one holds only if the reader finds later that it was parked all the time.
#pragma once
#include "sched/memory/block.h"
#include "sched/observe/report.h"
#include "sched/scheduler.h"

namespace fiberthread {

// How a layer above brings a ParkReason up to date. `what` is the first word of the ParkReason::what that it is for. look() sets the present
// owner of the object, and the address under which the program knows it. The fiber may have gone on, and the object may be gone: look()
// reads it by copy_user(). Registered when the library is loaded.
struct WaitLook {
  const char* what;
  void (*look)(ParkReason& reason);
  WaitLook* next = nullptr;
};
void wait_look_by(WaitLook& look);

// Of a parked fiber. The owner is null or a fiber's record.
ParkReason reason_of(const FiberRecord* f);
// Returns true if only a fiber of this process can end the wait.
bool waits_for_fibers(const FiberRecord* f);

inline bool is_parked(const FiberRecord* f) { return f->run.state.load(std::memory_order_acquire) == State::Parked; }

// Calls visit(f) for every record that may have a fiber, until visit() returns false. Returns false in that case.
template <class Visit>
bool each_fiber(Visit visit) {
  if (!main_fiber->memory.block && !visit(main_fiber)) return false;
  struct {
    Visit& visit;
    bool all = true;
  } state{visit};
  block_each(
      [](FiberRecord* f, void* p) {
        auto* s = static_cast<decltype(state)*>(p);
        return s->all = s->visit(f);
      },
      &state);
  return state.all;
}

// Returns how many fibers are in the cycle of `f`, which wait for each other and for each of which `stuck` returns true; 0 if there is no such
// cycle. No more than some hundred are looked at.
uint32_t in_cycle(const FiberRecord* f, bool (*stuck)(const FiberRecord*));
// Writes the cycle that `f` is in. Stores the ids of its first members, at most `most`, and returns how many these are.
uint32_t report_cycle(const FiberRecord* f, uint64_t* ids, uint32_t most);

// For the verdict. Returns the number of fibers in the cycle that f is in, or 0 if it is in none. `steps` counts up to kMostLinks.
constexpr uint32_t kMostLinks = 1 << 20;
uint32_t cycle_of(const FiberRecord* f, uint32_t& steps);
// Returns true if f has the lowest id of its cycle. Each cycle is reported once, and begins with that member.
bool is_first_in_cycle(const FiberRecord* f, uint32_t members);
void put_cycle(Output& out, const FiberRecord* f, uint32_t members);

// Writes a line for each fiber, or for those with these ids if `n` is not 0, but no more than `most` lines.
void put_fibers(Output& out, uint64_t most, const uint64_t* only = nullptr, uint32_t n = 0);

// Keeps signals that a write to stderr may raise from the program: takes them away before it restores the mask.
class NoSignals {
 public:
  NoSignals();
  ~NoSignals();
  NoSignals(const NoSignals&) = delete;

 private:
  uint64_t old_ = 0, before_ = 0;
};

}  // namespace fiberthread
