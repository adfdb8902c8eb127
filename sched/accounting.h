// SPDX-License-Identifier: MIT
// CPU time of single fibers, and their faults and switches. The kernel counts these for kernel threads only.
//
// A worker's CPU clock up to Worker::cpu.mark has been given to fibers. From the first use on, each switch gives the rest to the fiber that
// leaves (kObserveCpu, observe/observe.h). A short rest is taken from the cycle counter, so the mark may be ahead of the clock for a
// moment. Before the first use a switch pays nothing, and the timer's tick gives the rest to the fiber that runs then.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/worker.h"

namespace fiberthread {

// Gives the CPU time that w has used since the mark to f; null: to no fiber. Called in scheduler code of w, or with w's signals masked, or
// once kObserveCpu keeps the tick from it. If `how` is exact, the kernel's clock is read even for a short stint.
enum class Account { Cheap, Exact };
void account(Worker* w, FiberRecord* f, Account how = Account::Cheap);
// Does so for the running fiber. Called in the tick's handler.
void account_tick();

// Returns the fiber's CPU time so far, in nanoseconds. Never less than any thread got before. Switches accounting on.
uint64_t cpu_time_of(FiberRecord* f);

// What the kernel counts of a thread beside its CPU time. A fiber is counted from its first question on. It gets what its kernel threads
// count while it runs there, and its own waits and preemptions. Fibers that have not asked pay nothing.
struct Usage {
  uint64_t minor_faults = 0, major_faults = 0, blocks_in = 0, blocks_out = 0;
  uint64_t voluntary = 0, involuntary = 0;  // switches
};
// Returns the counts of the caller, a fiber. Main's begin with the process's, since it was the process. Switches accounting on.
Usage usage_of_caller();
// Called on the fiber's stack before it leaves its worker, and when it runs again.
void usage_leaves(bool waits);
void usage_arrives();

// Returns the CPU time of one kernel thread, in nanoseconds. 0: the caller's.
uint64_t cpu_time_of_thread(int tid);

}  // namespace fiberthread
