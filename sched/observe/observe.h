// SPDX-License-Identifier: MIT
// What somebody wants to see: statistics by reason, a trace, lines about single events, CPU times of fibers.
//
// All of it hangs on one word. Where nobody looks, an event costs the test of a word that nobody writes, and at the hottest places
// one such test stands for all; where somebody does, the calls below do the rest. The counts that are always kept (worker.h) are
// plain additions to what the worker has in its cache anyway.
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
};
alignas(64) extern std::atomic<uint32_t> observing;  // bits are only ever added
inline bool observed(uint32_t bits) { return __builtin_expect(observing.load(std::memory_order_relaxed) & bits, 0); }

// Why a fiber leaves its worker. The first of TraceKind are the same.
enum class Leave : uint8_t { Park, Yield, Preempt, Done };

// Each under observed(). By worker w, in scheduler code: `f` leaves it; it begins to look for work, or to run a fiber, after a sleep.
void observe_leaves(Worker* w, FiberRecord* f, Leave why);
void observe_begins(Worker* w);
// By whom it may concern, who may be no worker.
void observe_spawned(FiberRecord* f);
[[gnu::cold]] void observe_stolen(FiberRecord* f, uint32_t from_slot);
[[gnu::cold]] void observe_handed_over(Worker* w);  // w's slot went to another, as it sleeps in the kernel
[[gnu::cold]] void observe_came_back(Worker* w);

// "fiberthread: join: fiber 4194305 NAME what more" on stderr, under observed(). In any context.
[[gnu::cold]] void debug_line(const char* word, const FiberRecord* f, const char* what, const char* more = "",
                              const void* object = nullptr);
[[gnu::cold]] void debug_line(const char* word, const FiberRecord* f, const char* what, uint64_t number);
// The queues, for FIBERTHREAD_DEBUG=inbox at a deadlock.
void debug_queues();

void report_statistics(int fd);

// The trace (trace.cpp). `name` as FIBERTHREAD_TRACE has it.
void trace_to(const char* name);
void trace_start();  // with the scheduler
void trace_end();    // writes what there is, and ends it

}  // namespace fiberthread
