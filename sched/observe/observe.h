// SPDX-License-Identifier: MIT
// Observing: statistics by reason, a trace, lines about single events, CPU times of fibers.
//
// One word, `observing`, says what is observed. If nothing is, an event costs a test of that word, and at the hottest places one test
// stands for all. If something is, the calls below do the rest. The counts that are always kept (worker.h) are plain additions to memory
// that the worker has in its cache anyway.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

enum Observe : uint32_t {
  kObserveCpu = 1,    // accounting.h
  kObserveStats = 2,  // parks by reason, the peak
  kObserveTrace = 4,
  // The words of FIBERTHREAD_DEBUG in their order.
  kObserveJoin = 8,
  kObserveWake = 16,
  kObserveInbox = 32,
  kObservePark = 64,
  kObserveChannel = 128,
  kObserveSelect = 256,
  kObserveSysmon = 512,
  kObserveSignal = 1024,
  kObserveDelay = 2048,  // the time from when a fiber is queued until it runs
  kObserveNames = 4096,  // names.h
  kObserveRuns = 8192,   // how long fibers run, for ran_for_long() of run/; while there is a reserve
};
// Bits are only added. Two exceptions: trace_start() clears kObserveTrace if it cannot write, before any worker runs. want_reserve() adds and
// clears kObserveRuns.
alignas(64) extern std::atomic<uint32_t> observing;
inline bool observed(uint32_t bits) { return __builtin_expect(observing.load(std::memory_order_relaxed) & bits, 0); }

// Why a fiber leaves its worker. The first values of TraceKind are the same.
enum class Leave : uint8_t { Park, Yield, Preempt, Done };

// All of these are called only if observed() says so. Worker w calls the first two, in scheduler code: when `f` leaves it, and before it
// runs a fiber from worker context.
void observe_leaves(Worker* w, FiberRecord* f, Leave why);
void observe_begins(Worker* w);
// Called by the thread that makes `f` runnable first. It need not be a worker.
void observe_spawned(FiberRecord* f);
[[gnu::cold]] void observe_stolen(FiberRecord* f, uint32_t from_slot);
[[gnu::cold]] void observe_handed_over(Worker* w);  // w's slot goes to another worker, because w sleeps in the kernel
[[gnu::cold]] void observe_came_back(Worker* w);    // w runs again

// Called when `f` is about to be queued, and when w is about to run it: the latter for delays, names and runs.
void observe_queued(FiberRecord* f);
void observe_runs(Worker* w, FiberRecord* f);
uint64_t queued_for(const FiberRecord* f);  // ns since it was queued, roughly; 0: it is in no queue

// Delays are counted by their size: the one at i < kDelays - 1 counts those below delay_below(i) ns that the ones before it do not.
constexpr uint32_t kDelays = 22;
constexpr uint64_t delay_below(uint32_t i) { return uint64_t{1024} << i; }
void collect_delays(uint64_t (&counts)[kDelays], uint64_t& sum_ns);

// Writes "fiberthread: join: fiber 4194305 NAME what more object" on stderr. Called only if observed() says so, in any context.
[[gnu::cold]] void debug_line(const char* word, const FiberRecord* f, const char* what, const char* more = "",
                              const void* object = nullptr);
[[gnu::cold]] void debug_line(const char* word, const FiberRecord* f, const char* what, uint64_t number);
// Writes a line for each slot's queues, for FIBERTHREAD_DEBUG=inbox at a deadlock.
void debug_queues();

// What is counted in all, at about this time.
struct Counts {
  static constexpr uint32_t kMostReasons = 64;
  uint64_t spawned, fresh, live, switches = 0, parks = 0, steals = 0, preemptions = 0, handovers, polls;
  struct {
    const char* what;
    uint64_t count;
  } reason[kMostReasons] = {};  // of parks, if they are observed
  uint32_t reasons = 0;
};
void collect_counts(Counts& to);
void report_statistics(int fd);

// The trace (trace.cpp). `name` is the value of FIBERTHREAD_TRACE.
void trace_to(const char* name);
void trace_start();  // called at the scheduler's start
void trace_end();    // ends the trace, and makes its file of the records

}  // namespace fiberthread
