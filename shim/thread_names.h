// SPDX-License-Identifier: MIT
// What others know a thread by: its tid, and its name.
#pragma once
#include "sched/fiber.h"

namespace fiberthread {

// The fiber with this tid (as gettid() gives it), 0 for the caller; null if there is none.
FiberRecord* fiber_of_tid(int tid);

// The name of a scheduled fiber; the main fiber's is the process's in the kernel, too. Cut to 15 bytes.
void set_name(FiberRecord* f, const char* name);
// False: nobody gave it one, and it has the process's. To have been given an empty one is told by a byte behind it.
inline bool has_name(const FiberRecord* f) { return f->identity.name[0] || f->identity.name[1]; }

}  // namespace fiberthread
