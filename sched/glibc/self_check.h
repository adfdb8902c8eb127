// SPDX-License-Identifier: MIT
// The start: what is learnt about this libc, and proved, before any fiber exists.
#pragma once

namespace fiberthread {

// Learns the layout and proves it. Calls model_main() on the model thread, which goes on as sysmon. Returns false, with a literal in *why,
// if this libc cannot be served. The thread has ended then. A native thread calls it once per process, again in the child of a fork, with
// signals blocked.
bool tcb_init(void (*model_main)(), const char** why);

}  // namespace fiberthread
