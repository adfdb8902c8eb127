// SPDX-License-Identifier: MIT
// What the kernel keeps for each of its threads by itself.
#pragma once

namespace fiberthread {

// Gives the calling fiber a kernel thread of its own for good. 0 or an errno value. Kernel threads have one.
int own_kernel_thread();
// Does this system call change the calling kernel thread only? `b` is its second argument.
bool call_is_of_thread(long number, long b);

}  // namespace fiberthread
