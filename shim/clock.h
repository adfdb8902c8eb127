// What names a thread to the kernel, as the rest of the shim needs it.
#pragma once
#include <time.h>

#include "sched/fiber.h"

namespace fiberthread {

// Whom the timer with this number (siginfo_t::si_timerid) signals by SIGEV_THREAD_ID; null: it signals the process. *gone is
// set if that thread has ended. Signal-safe.
FiberRecord* timer_target(int timer, bool* gone);

// The fiber whose CPU time this clock shows: the caller's for CLOCK_THREAD_CPUTIME_ID, or one by pthread_getcpuclockid()'s number.
// Null: the clock is the kernel's.
FiberRecord* owner_of_clock(clockid_t clock);
// That number. Made of the fiber's id as the kernel makes it of a tid.
clockid_t cpu_clock_of(const FiberRecord* f);

// The name of a scheduled fiber; the main fiber's is the process's in the kernel, too. Cut to 15 bytes.
void set_name(FiberRecord* f, const char* name);
// False: nobody gave it one, and it has the process's. To have been given an empty one is told by a byte behind it.
inline bool has_name(const FiberRecord* f) { return f->name[0] || f->name[1]; }

}  // namespace fiberthread
