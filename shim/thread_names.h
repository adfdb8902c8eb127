// SPDX-License-Identifier: MIT
// How other threads know a thread: its tid, and its name.
#pragma once
#include "sched/fiber.h"

namespace fiberthread {

// Returns the fiber with this tid (as gettid() gives it), or the caller for 0. Null if there is none.
FiberRecord* fiber_of_tid(int tid);

// Sets the name of a scheduled fiber, cut to 15 bytes. The main fiber's name is also the process's name in the kernel.
void set_name(FiberRecord* f, const char* name);
// Returns false if the fiber was never given a name, and has the process's. A byte behind an empty name tells that it was given.
inline bool has_name(const FiberRecord* f) { return f->identity.name[0] || f->identity.name[1]; }
// Copies the name of a scheduled fiber, 16 bytes at most. A fiber without one has the name that the process had before main was given
// another.
void name_of(const FiberRecord* f, char* buffer);

}  // namespace fiberthread
