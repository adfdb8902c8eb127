// SPDX-License-Identifier: MIT
// fork from any fiber. The child has that fiber alone, on its one kernel thread, and its scheduler has not started.
#pragma once
namespace fiberthread {
// Called at the start of the library, before any other code can register. So our prepare handler runs last, and our others run first.
void fork_init();
// Forks by a bare system call. `nr` is SYS_fork or SYS_clone, and gets the arguments. Returns what the kernel returns.
long fork_by(long nr, long a, long b, long c, long d, long e);
}  // namespace fiberthread
