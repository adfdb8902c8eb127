// SPDX-License-Identifier: MIT
// The flight recorder: each worker keeps its last switches in a ring in memory, always. `fiberthread record` makes a trace of the rings of a
// process or of a core.
//
// A record is two words, and one store. The clock is read at every eighth switch, and when the worker goes idle; readers set the other
// records between these times. The ring is the worker's own. A reader outside leaves out what may have been overwritten while it has read.
#pragma once
#include "sched/arch/arch.h"
#include "sched/worker.h"

namespace fiberthread {

constexpr uint32_t kFlightClock = 8;  // switches from one look at the clock to the next

// Called before the scheduler starts: the size of a worker's ring. 0: no recorder.
void flight_bytes(uint64_t bytes);
size_t flight_room();          // bytes of a ring, which is in the worker's mapping, beside its stacks
void flight_start(Worker* w);  // before the worker's first switch: how much of the ring it uses
void flight_clocks();          // notes both clocks at the same time, for readers; at the scheduler's start

// Why the fiber before went: one of these, or the low half of the address of ParkReason::what.
enum FlightWhy : uint32_t { kFlightNothing, kFlightYield, kFlightPreempt, kFlightDone };

// w begins to run `next`, or goes idle if that is null. Called by w.
[[gnu::always_inline]] inline void flight_note(Worker* w, const FiberRecord* next, uint32_t why) {
  FlightRecord* ring = w->flight.ring;
  if (!ring) return;
  uint32_t i = w->flight.next;
  uint64_t at = i % kFlightClock == 0 || !next ? cycles() : 0;
  ring[i & w->flight.mask] = {reinterpret_cast<uintptr_t>(next) << 16 | (at >> 32 & 0xffff), uint64_t{why} << 32 | (at & 0xffffffff)};
  __atomic_store_n(&w->flight.next, i + 1, __ATOMIC_RELEASE);  // a reader outside that sees it sees the record
}

}  // namespace fiberthread
