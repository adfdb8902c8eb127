// SPDX-License-Identifier: MIT
// Ids that name a process, and the kernel threads that get the signals of files.
#pragma once
#include <fcntl.h>
#include <signal.h>

#include "sched/fiber.h"

namespace fiberthread {

// Returns the id of this process if `id` is that of one of its threads, as the kernel does, and else `id`.
pid_t process_of(pid_t id);

// Do fcntl's F_SETOWN_EX and F_GETOWN_EX. A thread that becomes the owner gets a kernel thread of its own.
int set_owner(int fd, const f_owner_ex* owner);
int get_owner(int fd, f_owner_ex* owner);
// Returns true if the kernel has sent this signal to the kernel thread of `me` alone, as the owner of a file. Async-signal-safe.
bool sent_to_owner(FiberRecord* me, const siginfo_t& info);

}  // namespace fiberthread
