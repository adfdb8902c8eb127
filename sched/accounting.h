// SPDX-License-Identifier: MIT
// CPU time of single fibers, which the kernel knows of its threads only.
//
// A worker's clock up to Worker::cpu.mark has been given to fibers. From the first use on, each switch gives the rest to the fiber
// that leaves (kObserveCpu, observe.h), by the cycle counter if that is little: so the mark may be ahead of the clock for a moment. Until
// then nobody pays for that, and the timer's tick does it, for whoever runs then.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/worker.h"

namespace fiberthread {

// In scheduler code of w, or with w's signals masked, or once the tick leaves it alone: what it has used belongs to f; null: to nobody.
void account(Worker* w, FiberRecord* f, bool exactly = false);
// In the tick's handler.
void account_tick();

// The fiber's CPU time so far, in nanoseconds. Never less than before, whoever asks. Switches accounting on.
uint64_t cpu_time_of(FiberRecord* f);

// CPU time of one kernel thread, 0: the caller's.
uint64_t cpu_time_of_thread(int tid);

}  // namespace fiberthread
