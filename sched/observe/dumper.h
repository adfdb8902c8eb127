// SPDX-License-Identifier: MIT
// Stacks for our own reports: `fiberthread dump` is run on this process by itself. What names stacks needs malloc and the loader, and
// their locks may be held for ever by those who are to be reported; a process of its own needs nothing of ours.
#pragma once
#include <atomic>
#include <cstdint>

namespace fiberthread {

// Where the library was loaded from, kept at the scheduler's start; the launcher stands beside it, or in bin/.
void dumper_find();

// Starts it: all fibers or, if `fiber` is not 0, that one; at most `most` (0: all). Its lines go to stderr. False: it cannot be
// had, or one is running. Any thread, in handlers too: no libc lock, no memory allocation.
bool dumper_start(uint64_t fiber, uint64_t most);
enum class Dumper { None, Runs, Said, Failed };
// How it is. After Said or Failed it is no more.
Dumper dumper_look();
// Until it has ended, or for as long as one may wait. True: it has said all.
bool dumper_wait();
void dumper_reset();  // in the child of a fork

// FIBERTHREAD_DUMP_SIGNAL has come: sysmon starts it soon. From any handler.
void dump_request();
// Sysmon: true as long as there is something to look after.
bool dump_attend();
// Of the kernel's handler for that signal, nothing but dump_request() comes.
extern std::atomic<bool> dump_signal_is_ours;

// For reports without it: one line for each fiber.
void report_fibers(uint64_t only, uint64_t most);

}  // namespace fiberthread
