// SPDX-License-Identifier: MIT
// fork from any fiber: the child has that fiber alone, on its one kernel thread, and a scheduler that has not started.
#pragma once
namespace fiberthread {
// At library start, before anybody else can register: so our prepare handler runs last, and the others first.
void fork_init();
// A fork by a bare system call: `nr` is SYS_fork or SYS_clone, which gets the arguments. As the kernel returns.
long fork_by(long nr, long a, long b, long c, long d, long e);
}  // namespace fiberthread
