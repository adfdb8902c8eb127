// SPDX-License-Identifier: MIT
// io_uring: rings that the kernel serves for one kernel thread only.
#pragma once

namespace fiberthread {

// Does SYS_io_uring_setup and SYS_io_uring_register. Any thread may call it. Returns what the kernel would return.
long ring_call(long number, long a, long b, long c, long d);

// Called by main when the scheduler has started.
void rings_scheduler_started();

}  // namespace fiberthread
