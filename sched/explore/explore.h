// SPDX-License-Identifier: MIT
// Exploration: the order in which fibers run is chosen on purpose, and the same each time for the same order (`shared.h`).
//
// One worker runs one fiber at a time. A *point* is a call of the program that may matter to other fibers; preload/explore/ brings each of
// them here before it is made. A *choice* is made at a point, and wherever a fiber waits or ends: among the fiber that is at the point (the
// first candidate) and those that are queued, in the order of the queue. Time is virtual. It goes on by one microsecond (a hundred, after many points) with each point
// and each look at a clock, and jumps to the next timer when nothing can run, or when a choice falls on the clock.
//
// Sysmon begins late, if at all, and keeps out of it: it runs no timers, looks at no descriptors, and takes no slot before a fiber has slept in the
// kernel for long.
#pragma once
#include <ctime>

#include <cstdint>

#include "sched/explore/shared.h"
#include "sched/fiber.h"

// Order::memory while this process is explored, else 0. The library that answers the instrumentation of memory accesses reads it before it
// does anything.
extern "C" uint32_t fiberthread_explore_memory;

namespace fiberthread {

extern bool exploring;

// Called at the start of the library with the path of the shared memory. Does nothing if that is no such memory.
void explore_begin(const char* path);
// Called when the scheduler starts, with all signals blocked. The first process that makes a thread is the one that is explored: the program
// itself, what it becomes by exec(), or a child. In others, this ends the exploration.
void explore_claim();
void explore_defer_claim();  // the start of the scheduler shall not claim, unless another process has
bool explore_claim_deferred();
void explore_take_order();    // that of the run which now begins
bool explore_unclaimed();     // no process has made a thread yet
bool explore_wants_sysmon();  // Explored::Order::sysmon
void explore_has_sysmon();    // tells the launcher

// A call that a fiber is about to make, or has just made.
struct ExplorePoint {
  const char* call;
  uint64_t object, pc;
  bool after;
};
// Chooses among `me`, unless that is null, and the fibers that `next(data)` gives until it returns null. Returns the number of the
// candidate, or their count if time shall jump to the next timer, which must not be asked for without `timer`. Under Busy or in worker context.
// `stop`: `me` is stopped before an access to memory, so another is chosen if there is one.
uint32_t explore_choose(FiberRecord* me, FiberRecord* (*next)(void*), void* data, bool timer, bool stop = false);
// Notes that `me`, the caller, is at a point. Ends the process if there were too many: a livelock.
void explore_note(FiberRecord* me, const ExplorePoint& point);
// Notes that `me`, the caller, is about to end the process there.
void explore_fails(FiberRecord* me, uint64_t pc);
// Notes that `me`, the caller, is stopped before an access to memory. Returns false if none of the `others` can go on in its place.
bool explore_stop(FiberRecord* me, const ExplorePoint& access, uint32_t others);
// Called where a window could be opened for the caller (step.h). Returns true if it has been opened. `stopped`: as
// for step_open().
bool explore_window(bool stopped);
// Returns whether a timer that is due then may fire although fibers could run.
bool explore_may_fire(uint64_t due);
// Called by a fiber that begins, if its identity.start was replaced by explored_start(). Returns what it was.
void* (*explore_begins(FiberRecord* me))(void*);
void explore_gives_way(FiberRecord* me);  // the point is a sched_yield(): others come first
// Notes an event at a time that is not ours.
void explore_outside();
// Notes that the process is about to end for this reason. Ends it, unless the run shall report what it has found.
void explore_ends(ExploredEnd end);
// Returns true if the call in which `f` waits has no deadline, and ends in no other way than that another fiber gives what it waits for.
bool explore_waits_for_ever(const FiberRecord* f);
void explore_ends_by(const Race& race);
uint32_t explore_number(FiberRecord* f);
// Returns true if ticks have come again and again without a point between them. Called in the handler of preemption's signal.
bool explore_stuck();

// Reads a clock in virtual time. Returns false if the caller, or this clock, has real time.
bool explore_clock(clockid_t clock, timespec* t);
void explore_jump(uint64_t to_ns);  // monotonic time; does not go back
// For waits in the kernel, whose time is real. Returns when the kernel's clock will show what is `t` to the caller.
timespec explore_kernel_time(clockid_t clock, const timespec& t);
// Such a wait has taken all its time: until the clock shows `t` to the caller, or so long.
void explore_waited_until(clockid_t clock, const timespec& t);
void explore_waited(const timespec& t);

// ---- in sched/run/explored.cpp ----

// Opens a window for the caller, a fiber in code of the program that is about to go on, or does not. Returns true if the caller must begin to step.
bool explored_window(bool stopped);
// Lets another fiber go on while the caller is stopped before an access. If it has read there already, `written` is the size of what it is about
// to write. Returns false if no other could go on: the schedule is then as if the caller had not been stopped.
bool explored_stop(const ExplorePoint& access, uint8_t written);
// Returns true if a signal, a timer of the kernel or a child may still do something for the program.
bool explored_outside_may_come();
// Begins a fiber for which a window may be opened.
void* explored_start(void* argument);

}  // namespace fiberthread
