// SPDX-License-Identifier: MIT
// libgomp, the run-time library of OpenMP, waits by system call instructions of its own.
#pragma once

namespace fiberthread {

// Makes its threads wait as fibers, if it is there. Called when nobody can be inside it: before the second thread exists, after a
// dlopen, and before a thread that is made during one: constructors may run OpenMP.
void libgomp_look();

}  // namespace fiberthread
