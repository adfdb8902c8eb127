// SPDX-License-Identifier: MIT
// The start: the library learns how this libc is made, and proves it, before any fiber exists.
#pragma once

namespace fiberthread {

// Learns the layout and proves it. Calls model_main() on the model thread, which goes on as sysmon. Returns false, with a literal in *why,
// if this libc cannot be served. The model thread has ended then. A native thread calls it with signals blocked, once per process, and
// again in the child of a fork. What was learned before a fork holds in the child.
bool tcb_init(void (*model_main)(), const char** why);
bool tcb_known();  // this has been learned, here or before a fork

}  // namespace fiberthread
