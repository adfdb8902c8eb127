// SPDX-License-Identifier: MIT
// libc's unwinder, a library (libgcc_s) that libc loads at the first pthread_exit() or pthread_cancel(). If another thread forks
// meanwhile, the child has a library that is half loaded, and its own first pthread_exit() crashes or hangs. So loading and forking exclude
// each other here.
#pragma once

namespace fiberthread {

// Called before libc unwinds: has the unwinder loaded, while no thread forks. May wait. From fibers and foreign threads, not under Busy.
void unwinder_load();
// Called before a fork, and after it in both processes. The first one waits until no thread loads the unwinder.
void unwinder_before_fork();
void unwinder_after_fork_in_parent();
void unwinder_after_fork_in_child();

}  // namespace fiberthread
