// SPDX-License-Identifier: MIT
// What the files of this room share. Nobody else includes this.
#pragma once
#include "sched/worker.h"

namespace fiberthread {

// ---- workers.cpp ----
// The kernel thread of a native fiber becomes a worker, and the fiber goes on as one of many. Busy, signals blocked.
bool become_worker(FiberRecord* me);
void dismiss(Worker* w);  // its fiber has ended, or will not come: its thread ends

// ---- count.cpp ----
// Release: who sees the end of a fiber sees that it was made, and what it made.
inline void count(std::atomic<uint64_t>& own) { own.store(own.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

// ---- barrier.cpp ----
// Tells the kernel who uses the cheap form of membarrier. Before the second thread exists, as later it waits 16 ms for every CPU.
void barrier_init();

}  // namespace fiberthread
