// SPDX-License-Identifier: MIT
// Stacks for our own reports: the process runs `fiberthread dump` on itself. Code that names stacks needs malloc and the loader, and the
// fibers to be reported may hold their locks for ever. A process of its own needs no lock of ours.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// Notes where the library was loaded from, at the scheduler's start. The launcher is beside it, or in bin/.
void dumper_find();

// Starts a dumper, whose lines go to stderr. It reports no more than `most` fibers (0: no limit): all, or the `n` with the ids of `only`, which
// may be kMostDumped. Returns false if it cannot be started, or one is running. Any thread, handlers included: no libc lock, no memory
// allocation.
constexpr uint32_t kMostDumped = 20;
// `sample`: it is about the stall watch's sample (stall.h), of that one fiber.
bool dumper_start(uint64_t most, const uint64_t* only = nullptr, uint32_t n = 0, bool sample = false);
enum class Dumper { None, Runs, Said, Failed };
// Returns the state of the dumper: Said if it has ended and reported all. After Said or Failed there is no dumper any more.
Dumper dumper_look();
// Waits in the kernel until the dumper has ended. Kills one that takes more than 30 seconds. Returns true if it has reported all.
bool dumper_wait();

// Asks for a dump, because FIBERTHREAD_DUMP_SIGNAL has come: sysmon starts one soon. Before the scheduler's start, the caller does it.
// Called in any handler.
void dump_request();
// The same for the fibers with these ids. Called by sysmon.
void dump_request_of(const uint64_t* ids, uint32_t n, bool sample = false);
// Starts a dump that was asked for, and looks after it. Called by sysmon. Returns true while one runs.
bool dump_attend();
// True while the program has no handler for that signal, so that the signal does nothing but ask for a dump.
extern std::atomic<bool> dump_signal_is_ours;

// FIBERTHREAD_RECORD: each dumper also writes the flight recorder's trace to this file, whose name lasts. Called before the scheduler starts.
void record_to(const char* file);
bool record_wanted();
// Does so because the process is about to end by a signal that the fiber has met, and reports that fiber. Called in any handler.
void record_end(const FiberRecord* f);

// Writes one line for each fiber, for reports without a dumper. The arguments are those of dumper_start().
void report_fibers(uint64_t most, const uint64_t* only = nullptr, uint32_t n = 0);

}  // namespace fiberthread
