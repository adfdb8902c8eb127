// SPDX-License-Identifier: MIT
// The areas of restartable sequences (rseq). The kernel writes there on which CPU a kernel thread is. libc (2.35) registers an area for
// each of its threads and lets programs look into it.
//
// A fiber's area is never registered, because the kernel would go on to write into it when the fiber has left that kernel thread.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fiberthread {

// Makes the caller's TCB, the initial thread's, fit to move between workers: unregisters its area. Returns false, and has changed nothing,
// if the kernel refuses.
bool tcb_adopt_main();

// ---- for this folder only ----
namespace glibc {

// Finds out whether and where this libc has areas.
void find_rseq();
// Returns false if the area of the thread with that thread pointer reaches beyond [low, high].
bool rseq_area_is_within(char* tp, const char* low, const char* high);
// Returns true if `p` is in the area of the thread with that thread pointer.
bool in_rseq_area(char* tp, const char* p);
// Marks the area as one that the kernel does not know.
void rseq_is_not_registered(char* tp);

}  // namespace glibc
}  // namespace fiberthread
