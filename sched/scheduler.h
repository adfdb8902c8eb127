// SPDX-License-Identifier: MIT
// The scheduler, for the layers above: what a process chose at the start, the start itself, fibers' birth, calls, ends and kernel threads.
// (How a fiber waits and is woken is fiber.h; how it is joined, life/join.h.) Slots and workers are inside: worker.h.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/preempt.h"

namespace fiberthread {

struct Statistics {
  std::atomic<uint64_t> spawned{0}, ended{0};  // by kernel threads that are no workers
  std::atomic<uint64_t> handovers{0}, polls{0};
  std::atomic<uint64_t> fresh{0};  // births on memory that had no fiber before
  std::atomic<uint64_t> peak{0};   // of live_fibers(), while statistics are asked for
  std::atomic<uint32_t> workers{0};
};
extern Statistics statistics;
uint64_t fibers_spawned();
uint64_t fibers_recycled();

enum class SpawnPolicy { Adaptive, RoundRobin, Local };
enum class DeadlockPolicy { Report, Abort, Off };
enum class Report : uint8_t { None, Text, Json };  // of the statistics, at the end

// What a build may set otherwise (see Makefile); variables and options come before these.
#ifndef FIBERTHREAD_DEFAULT_WORKERS
#define FIBERTHREAD_DEFAULT_WORKERS 0
#endif
#ifndef FIBERTHREAD_DEFAULT_STACK_SIZE
#define FIBERTHREAD_DEFAULT_STACK_SIZE 0
#endif

struct Options {
  uint32_t workers = FIBERTHREAD_DEFAULT_WORKERS;  // 0: as many as CPUs
  SpawnPolicy spawn = SpawnPolicy::Adaptive;
  DeadlockPolicy deadlock = DeadlockPolicy::Report;
  uint32_t preempt_us = 0;                               // test aid, 0: at the kernel's tick
  int dump_signal = 0;                                   // 0: none
  uint64_t stack_size = FIBERTHREAD_DEFAULT_STACK_SIZE;  // 0: what libc says
  Report statistics = Report::None;
  const char* refused = nullptr;  // why threads must be libc's, if that was found before the start
  bool preempt = true, verbose = false, force_nptl = false, fail_self_check = false;
};
extern Options options;

extern FiberRecord main_fiber_record;
extern FiberRecord* main_fiber;  // fiber 0; after a fork, the fiber that forked

// Starts the scheduler if it has not been, and makes the main kernel thread worker 0 if it calls. False if this libc
// cannot be served: threads must be NPTL's then. Any native thread or fiber.
bool sched_start();
bool sched_started();
// Whether this process has ever wanted to start it.
bool sched_asked();
// At library start: the initial thread becomes fiber 0 in name.
void sched_init();

// Lays out the first frame of f, which from then on may be bound; entry runs on the fiber in Busy once. When it returns, the fiber
// ends as by sched_exit().
void sched_prepare(FiberRecord* f, void (*entry)(FiberRecord*));
// Instead of sched_spawn(): gives back a fiber that was prepared.
void sched_discard(FiberRecord* f);
// Makes a born fiber (state Created) runnable.
void sched_spawn(FiberRecord* f);
// Runs a born fiber at once, in place of the caller, which goes on when f first waits, yields or ends; not when it is preempted.
// 0, or ECANCELED if an interrupt in the mask ended the wait before: f runs all the same. Where either is a kernel thread, f runs
// elsewhere and the caller just waits.
struct CallWait {
  FiberRecord* caller;
  std::atomic<uint32_t> over{0};
};
int sched_call(FiberRecord* f, uint32_t interrupt_mask);
// As unpark(). Those that one fiber wakes so, with nothing in between, run in the order of the calls if they run where it runs.
void unpark_in_order(FiberRecord* f);
// Ends the calling fiber from any depth. Its record may be reused at once if detached, else after join.
[[noreturn]] void sched_exit();
// How many slots the program asks for; 0: it does not. FIBERTHREAD_WORKERS goes before it.
void sched_set_concurrency(uint32_t slots);
uint32_t base_slots();  // how many there are without growth
uint32_t cpu_count();   // that the process may use: by its affinity mask and its cgroup's quota

// Gives f a kernel thread of its own, for what only the kernel can give; it stays there until it ends. Its next run is on
// that thread; the caller, if it is f itself, is there on return. 0, EAGAIN (no memory, no threads), ESRCH (f has ended).
// From fibers; parks.
int sched_bind(FiberRecord* f);
// The caller, a fiber on its own stack, is bound to the kernel thread that it is on, if that is the process's first.
void sched_bind_to_initial();

// Counts the caller, about to end, as ended. True if nobody is left, for the last one alone: it ends the process. Main counts too.
bool sched_count_end();
// Those that have not ended, main included. Never too few; zero is final.
uint64_t live_fibers();

// The kernel refused the last worker that was wanted (RLIMIT_NPROC, a filter).
extern std::atomic<bool> workers_refused;

void sched_block_signals(uint64_t* old);
void sched_restore_signals(uint64_t old);

// Applies the caller's new FiberRecord::run.sigmask to the kernel thread. Busy.
void sched_apply_mask();

// The record of a kernel thread that is none of ours, and its life: got, by whomever; entered, on the thread; put back by its end if
// it is `detached`, as they are at first, else by who has waited for `done`.
FiberRecord* kernel_record_get();
void kernel_record_enter(FiberRecord* f);
void kernel_record_put(FiberRecord* f);
void kernel_record_each(bool (*visit)(FiberRecord*, void*), void* data);  // until it returns false

// Starts a kernel thread of the library's own that runs no fibers, with all signals but libc's two blocked: its tid, or -1. There
// is one at most. No libc lock.
int start_helper(void (*main)());
void sysmon_set_mask(uint64_t mask);  // of the main fiber
// From now on, waits with kFollowsRealtime end when that clock is set. Cheap but the first time.
void sysmon_follow_clock();
void sysmon_clock_was_set();  // ends them
// Has Embedder::on_sysmon() called soon. From any context, signal handlers too.
void sysmon_call();
constexpr uint64_t kIdleMask = ~(uint64_t{3} << (kPreemptSignal - 1) | kTrapSignal);  // all signals but libc's two, and that of traps

}  // namespace fiberthread
