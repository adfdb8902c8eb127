// SPDX-License-Identifier: MIT
// Reports when all fibers wait for each other for ever.
#pragma once
#include "sched/fiber.h"

namespace fiberthread {

// Looks for a deadlock. Reports it on stderr, once in a process, and ends the process if FIBERTHREAD_DEADLOCK says so. Sysmon calls it when
// no work is queued and no timer runs. Returns true if sysmon must ask again, because a worker is on its way to sleep or has run meanwhile.
bool deadlock_check();

// Returns true if `f`, which is about to park, closes a cycle of fibers that wait for each other, each of which waits `for_ever`, without a
// deadline. No other fiber may run meanwhile.
bool closes_cycle(const FiberRecord* f, bool (*for_ever)(const FiberRecord*));
void report_cycle(const FiberRecord* f);  // of such a fiber

// How a layer above brings a ParkReason up to date for the report. `what` is the first word of the ParkReason::what that it is for. look()
// sets the present owner of the object, and the address under which the program knows it. It is called on sysmon while no fiber runs, and
// the object may be gone. Registered when the library is loaded.
struct WaitLook {
  const char* what;
  void (*look)(ParkReason& reason);
  WaitLook* next = nullptr;
};
void deadlock_look_by(WaitLook& look);

// A part of the report about objects of a layer above. Called and registered as WaitLook is.
class Output;
struct DeadlockPart {
  void (*tell)(Output& out);
  DeadlockPart* next = nullptr;
};
void deadlock_tell_by(DeadlockPart& part);

}  // namespace fiberthread
