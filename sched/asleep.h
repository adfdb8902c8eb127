// SPDX-License-Identifier: MIT
// Whether kernel threads sleep in the kernel, by /proc.
//
// A file of /proc must be opened to be read, and a new descriptor takes the lowest free number for an instant. The program may expect that
// number from an open() of its own, or put a file there by dup2(), which we would then close. So a kernel thread of the library's own, the
// *reader*, opens these files. It has a table of descriptors of its own, with nothing of the program's in it. It is started when it is first
// needed. As it starts, copies of the program's first 64 descriptors are closed in it, which the kernel makes in any case.
#pragma once

namespace fiberthread {

// Returns true if the kernel thread of the process sleeps in the kernel. A thread that only lacks a CPU does not. Returns true as well if
// /proc says nothing, if there is no reader (a kernel before 5.9, a filter of system calls, mq_notify), or if the process has made a filter.
// (Two equal readings of the thread's CPU clock must do then.) Only sysmon may call it, and waits for the reader.
bool asleep_by_proc(int tid);

// Called before the process asks for a notice of a message queue (mq_notify), which the kernel takes back when any thread of the process closes
// a copy of the queue's descriptor. After the call no reader starts any more, and a reader that was starting has closed its copies. The caller
// may wait for that in the kernel, without parking. Any thread may call it.
void asleep_make_no_copies();

}  // namespace fiberthread
