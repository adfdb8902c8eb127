// SPDX-License-Identifier: MIT
// System calls by number, as syscall() takes them.
#pragma once

namespace fiberthread {

// Makes the call, and returns what the kernel would return: a negative errno value is an error.
long syscall_of_fiber(long nr, long a, long b, long c, long d, long e, long f);

}  // namespace fiberthread
