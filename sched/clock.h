// SPDX-License-Identifier: MIT
// Tells when CLOCK_REALTIME was set. Deadlines that follow that clock are computed anew then.
#pragma once

namespace fiberthread {

// Opens the descriptor. Called when the scheduler starts: later it would take a number from the program for an instant.
void clock_open();
// Returns the descriptor, which is readable once the clock was set. -1: the kernel or a filter refuses that, and only clock_was_set() tells.
int clock_descriptor();
// Returns true if the clock was set since the last call. On any kernel thread of ours; takes no libc lock.
bool clock_was_set();
// Ends the waits whose deadlines follow the clock, so that they compute them anew. The same.
void end_waits_for_clock();

}  // namespace fiberthread
