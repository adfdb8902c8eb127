// SPDX-License-Identifier: MIT
// Calls that change what the kernel keeps for each kernel thread separately.
#pragma once

namespace fiberthread {

// Gives the calling fiber a kernel thread of its own, for good. Does nothing on a kernel thread. Returns 0 or an errno value.
int own_kernel_thread();
// Returns true if this system call changes the calling kernel thread only. `b` is its second argument.
bool call_is_of_thread(long number, long b);

}  // namespace fiberthread
