// SPDX-License-Identifier: MIT
// Shared by the files of this folder. No other file includes this.
#pragma once
#include "sched/worker.h"

namespace fiberthread {

// ---- workers.cpp ----
// Makes the kernel thread of `me`, the caller, a worker. `me` goes on as one of many fibers. Returns false if that cannot be done. Under
// Busy, with signals blocked.
bool become_worker(FiberRecord* me);
void dismiss(Worker* w);  // ends the kernel thread of w, whose fiber has ended or will not come

// ---- count.cpp ----
// Release: a thread that sees the end of a fiber counted also sees the birth of that fiber, and of those that it made, counted.
inline void count(std::atomic<uint64_t>& own) { own.store(own.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

// ---- barrier.cpp ----
// Tells the kernel that this process uses the cheap form of membarrier. Called before the second thread exists. Later, the kernel would
// wait for every CPU, which takes 16 ms.
void barrier_init();

}  // namespace fiberthread
