// SPDX-License-Identifier: MIT
// Reports when all fibers wait for each other for ever.
#pragma once
#include "sched/fiber.h"

namespace fiberthread {

// Looks for a deadlock. Reports it on stderr, once in a process, and ends the process if FIBERTHREAD_DEADLOCK says so. Sysmon calls it when
// it has rested, and when some fibers wait for each other. Returns true if sysmon must ask again, because a worker is on its way to sleep or has
// run meanwhile.
bool deadlock_check();

bool deadlock_reported();  // in this process

// Returns true if there is no kernel thread but so many workers, sysmon, the reaper and the helpers.
bool no_other_thread(uint32_t workers);

// Returns true if the program has set an alarm, whose default action would end it. While exploring: or any other timer of the kernel. Otherwise the
// look at handlers covers those.
bool timer_set();
// Returns true if a kernel thread of ours other than the caller's may be about to give a fiber a signal.
bool signal_on_its_way();

// Ends the process by SIGABRT, even if the program handles, blocks or ignores that signal. On sysmon.
void deadlock_ends_process();

// A part of the report about objects of a layer above. Called on sysmon while no fiber runs. Registered when the library is loaded.
class Output;
struct DeadlockPart {
  void (*tell)(Output& out);
  DeadlockPart* next = nullptr;
};
void deadlock_tell_by(DeadlockPart& part);

}  // namespace fiberthread
