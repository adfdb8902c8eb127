// SPDX-License-Identifier: MIT
// execve and its kin.
//
// The kernel thread of the caller lives on in the new program, with the signals that are pending for it. So what the library keeps pending for
// the caller goes to the kernel before. What the library sends by itself must not come any more: the new program would end by it.
#pragma once

namespace fiberthread {

// Looks up what handlers may call. Called before the scheduler starts.
void exec_init();

}  // namespace fiberthread
