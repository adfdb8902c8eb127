// libgomp, the run-time library of OpenMP, waits by system call instructions of its own.
#pragma once

namespace fiberthread {

// Makes its threads wait as fibers, if it is there. Called when nobody can be inside it: before the second thread exists, and after a
// dlopen, by whoever that was.
void libgomp_look();

// A system call as syscall() understands it, answered as the kernel does (syscall.cpp).
long syscall_of_fiber(long nr, long a, long b, long c, long d, long e, long f);

}  // namespace fiberthread
