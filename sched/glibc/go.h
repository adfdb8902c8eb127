// SPDX-License-Identifier: MIT
// Whether Go's run-time system is in the process.
#pragma once
#include <atomic>

namespace fiberthread {

// Returns true once a loaded object has been found to contain Go's run-time system. Go's run-time system makes system calls by itself. It
// blocks signals and sets alternate stacks that way, so each thread that it may run on has to keep its kernel thread. Looks at the loaded
// objects, under the loader's lock, if there may be new ones.
bool tcb_go_is_loaded();
extern std::atomic<bool> tcb_go_found;  // the answer so far

}  // namespace fiberthread
