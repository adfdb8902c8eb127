// SPDX-License-Identifier: MIT
// Says so when all fibers wait for each other for ever.
#pragma once
#include "sched/fiber.h"

namespace fiberthread {

// Sysmon calls it when it has nothing more to look at: no work is queued and no timer runs. Reports a deadlock on stderr,
// once in a process, and ends the process if it was told to. True: somebody is just on the way to sleep, so ask again.
bool deadlock_check();

// How the layers above bring a reason up to date for the report, by the first word of ParkReason::what: who holds the
// object by now, and the address under which the program knows it. Called on sysmon while no fiber runs; the object may
// be gone. Registered when the library is loaded.
struct WaitLook {
  const char* what;
  void (*look)(ParkReason& reason);
  WaitLook* next = nullptr;
};
void deadlock_look_by(WaitLook& look);

// What else the report tells, of objects of a layer above. Called and registered as above.
class Output;
struct DeadlockPart {
  void (*tell)(Output& out);
  DeadlockPart* next = nullptr;
};
void deadlock_tell_by(DeadlockPart& part);

}  // namespace fiberthread
