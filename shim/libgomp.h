// SPDX-License-Identifier: MIT
// libgomp, the run-time library of OpenMP, waits by system call instructions of its own.
#pragma once

namespace fiberthread {

// Makes the threads of libgomp wait as fibers, if it is loaded. Called only when no thread can be inside libgomp. That is before the second
// thread exists, after a dlopen, and before a thread that is made during a dlopen, because constructors may run OpenMP.
void libgomp_look();

}  // namespace fiberthread
