// SPDX-License-Identifier: MIT
// Windows: a fiber of an explored process runs in single steps for a short while, and is stopped before one of its accesses to memory.
//
// In a window the kernel signals each instruction with SIGTRAP. That signal's action is ours only while a window is open. The window is
// closed before the fiber makes a system call, unless that is about memory, so no code can see the action. A program's own SIGTRAP is as without windows.
#pragma once
#include <cstdint>

#include "sched/explore/explore.h"

namespace fiberthread {

// Called at the start of an explored process.
void step_init();
// Opens a window for the caller, which must begin to step at once. It will be stopped before the n-th access from here, by explored_stop(). The
// window is closed without a stop when the caller comes to a point, makes a system call that is not about memory, or makes more than `most` steps in
// a row without an access.
// `stopped`: it is stopped before an access now, which does not count.
void step_open(uint32_t n, uint32_t most, bool stopped);
uint32_t steps_made();  // in all windows
bool step_is_open();
// Called by code that the caller of step_open() runs without steps: a handler of a signal, on top of the window.
void step_close();

}  // namespace fiberthread
