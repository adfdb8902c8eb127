// SPDX-License-Identifier: MIT
// The scheduler, for the layers above: a process's options, the start, and the birth, calls, end and kernel threads of fibers. fiber.h has
// waiting and waking, life/join.h has joining. worker.h has slots and workers, which are for the inside only.
#pragma once
#include <atomic>
#include <cstdint>

#include "sched/fiber.h"
#include "sched/preempt.h"

namespace fiberthread {

struct Statistics {
  std::atomic<uint64_t> spawned{0}, ended{0};  // by kernel threads that are not workers; each worker has its own counts
  std::atomic<uint64_t> handovers{0}, polls{0};
  std::atomic<uint64_t> fresh{0};  // births on memory that had no fiber before
  std::atomic<uint64_t> peak{0};   // highest live_fibers(), while statistics are asked for
};
extern Statistics statistics;
uint64_t fibers_spawned();
uint64_t fibers_recycled();

enum class SpawnPolicy { Adaptive, RoundRobin, Local };
enum class DeadlockPolicy { Report, Abort, Off };
enum class Report : uint8_t { None, Text, Json };  // how the statistics are reported at the end

// Defaults that a build may change (see Makefile). Variables and options override them.
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
  uint32_t reserve = 8;     // slots for fibers that wake up while others compute in all slots, see run/slots.cpp
  uint32_t preempt_us = 0;  // test aid, 0: at the kernel's tick
  int dump_signal = 0;      // 0: none
  uint64_t stack_size = FIBERTHREAD_DEFAULT_STACK_SIZE;  // 0: libc's default
  Report statistics = Report::None;
  const char* refused = nullptr;  // why threads must be libc's, if that was known before the start
  const char* nptl = nullptr;     // why the user wants them to be libc's
  bool preempt = true, verbose = false, fail_self_check = false;
};
extern Options options;

extern FiberRecord main_fiber_record;
extern FiberRecord* main_fiber;  // fiber 0; after a fork, the fiber that forked

// Starts the scheduler unless it has started. If the main kernel thread calls, it becomes a worker. Returns false if this libc cannot be
// served: threads must be NPTL's then. From any native thread or fiber. Waits in the kernel while another thread starts the scheduler.
bool sched_start();
bool sched_started();
// Returns whether this process has ever tried to start it.
bool sched_asked();
// For a process whose scheduler has started, that has no fiber but main, and whose right to be explored is deferred (explore.h).
// sched_may_be_copied() returns whether a child of libc's fork can go on with the same scheduler: nothing but main's worker runs. The child calls
// sched_copied(), which renews what the kernel does not copy, and what depends on ids. sched_claim() ends the deferral.
bool sched_may_be_copied();
void sched_copied();
void sched_claim();
// Makes the initial thread fiber 0 in name. Called when the library starts.
void sched_init();

// Lays out the first frame of f, which may be bound from then on. `entry` runs on the fiber, with one Busy counted. When it returns, the
// fiber ends as by sched_exit().
void sched_prepare(FiberRecord* f, void (*entry)(FiberRecord*));
// Gives back a prepared fiber that will not be spawned.
void sched_discard(FiberRecord* f);
// Makes a prepared fiber (state Created) runnable.
void sched_spawn(FiberRecord* f);
// A call's share, on the caller's stack.
struct CallWait {
  FiberRecord* caller;
  std::atomic<uint32_t> over{0};
};
// Runs a prepared fiber at once, in place of the caller. The caller goes on when f first waits, yields or ends, but not when f is
// preempted. Returns 0, or ECANCELED if an interrupt in the mask ended the wait before; f runs all the same. If either is a kernel thread,
// f runs elsewhere and the caller just waits.
int sched_call(FiberRecord* f, uint32_t interrupt_mask);
// Unparks f. Fibers that one fiber wakes so, with nothing in between, run in the order of the calls if they run on its slot.
void unpark_in_order(FiberRecord* f);
// Ends the calling fiber from any depth. Its record may be reused at once if it is detached, and otherwise after join.
[[noreturn]] void sched_exit();
// Sets how many slots the program asks for; 0: it does not ask. FIBERTHREAD_WORKERS overrides it.
void sched_set_concurrency(uint32_t slots);
uint32_t base_slots();       // number of slots without growth
bool slots_are_asked_for();  // by the program or its user
uint32_t cpu_count();        // CPUs that the process may use, by its affinity mask and its cgroup's quota

// Why a fiber keeps a kernel thread of its own. The bond lasts as long as any reason for it.
using Reasons = uint8_t;
constexpr Reasons kForGood = 1;          // until the fiber ends
constexpr Reasons kForCall = 2;          // while the fiber itself makes a call that may change the kernel thread
constexpr Reasons kForMemoryPolicy = 4;  // while the kernel thread has a NUMA policy that the process has not

// Gives f a kernel thread of its own, for properties that only the kernel can give. Its next run is on that thread; if f is the caller, it
// is there on return. Returns 0, EAGAIN (no memory, no threads) or ESRCH (f has ended). From fibers; may park.
int sched_bind(FiberRecord* f, Reasons why = kForGood);
// Takes back reasons of f, the caller.
void sched_drop_reason(FiberRecord* f, Reasons why);
// Takes back a reason of the caller, a fiber. If that was the last one, it returns to the workers of the pool, and its kernel thread ends.
// May park.
void sched_unbind(Reasons why);
// The reasons why f is bound; 0: it is not, or by habit alone.
Reasons sched_bond_of(const FiberRecord* f);
// The kernel's tid of the thread that f is bound to for good; 0: it is not, and has what the process's other threads have.
int sched_own_tid(const FiberRecord* f);
// Adds reasons for a bond, if f is bound. Makes no system call. Any thread may call it.
void sched_add_reason(FiberRecord* f, Reasons why);
// If f runs on a kernel thread that it shares with no other fiber, returns that, and f stays there for good. Otherwise null.
Worker* sched_keep_bond(FiberRecord* f);
// Called when the kernel may send signals for f, which is bound for good, to its kernel thread. They reach f from now on, parked or not.
void sched_take_signals(FiberRecord* f);
// Does the kernel send signals for f, the caller, to its kernel thread?
bool sched_takes_signals(const FiberRecord* f);
// The fiber whose own kernel thread the caller is on, in worker context, if it takes signals there. Null: none. Async-signal-safe.
FiberRecord* sched_taker_here();
// Binds the caller, a fiber on its own stack, to the kernel thread that it is on for good, if that is the process's first.
void sched_bind_to_initial();

// Counts the caller, which is about to end, as ended. Returns true to the last one alone, which ends the process. Main counts too.
bool sched_count_end();
// Returns the number of fibers that have not ended, main included. Never too low; 0 is final.
uint64_t live_fibers();

// Writes the set of CPUs of the process's fibers, which is sysmon's, into `size` bytes at `set`, as sched_getaffinity() does. Returns the number
// of bytes written, or a negative errno value: EINVAL for too few bytes, EFAULT. Not for sysmon. Does not park.
long process_cpus(void* set, long size);

uint64_t workers_made();  // how many kernel threads run fibers, or did
// Set while the last worker that was wanted could not be made: the kernel refused it (RLIMIT_NPROC, a filter), or there was no memory.
extern std::atomic<bool> workers_refused;

void sched_block_signals(uint64_t* old);
void sched_restore_signals(uint64_t old);

// Applies the caller's new FiberRecord::run.sigmask to the kernel thread. Busy.
void sched_apply_mask();

// The records of foreign threads. Any thread may get one. The foreign thread itself enters it. Its end puts a record back that is
// `detached`, as records are at first. Otherwise the thread that has waited for `done` puts it back.
FiberRecord* kernel_record_get();
void kernel_record_enter(FiberRecord* f);
void kernel_record_start(FiberRecord* f);  // lets a kernel thread that was made for the record, and waits for `handle.fresh`, begin
void kernel_record_put(FiberRecord* f);
bool kernel_records_exist();                                              // of foreign threads that live or have ended
void kernel_record_each(bool (*visit)(FiberRecord*, void*), void* data);  // until it returns false

// Starts a kernel thread of the library's own that runs no fibers, with kIdleMask blocked. `main` never returns; its argument says nothing.
// Returns the thread's tid, or -1. Takes no libc lock. reserve_helper() does what needs memory, and returns null without that.
Worker* reserve_helper();
int start_helper(int (*main)(void*), Worker* reserved = nullptr);
// Says which mask the main fiber has. Kernel threads then take signals as the main fiber would, even if all fibers are parked. Returns once
// they do: a signal that main has just blocked cannot end the process any more.
void sched_set_main_mask(uint64_t mask);
// No kernel thread of a worker blocks SIGSYS any more on return. `filtered` is not 0. Foreign threads keep their masks.
void sched_open_trap();
// Waits until every worker without a fiber blocks these signals. The caller has just blocked them, and may have run on another worker
// before. Without this wait, the kernel could end the process for a signal that all threads block.
void sched_await_blocked(uint64_t signals);
// Does a worker or sysmon let one of these signals in just now? The kernel has then told that thread of it, if it was sent to the process.
bool sched_lets_in(uint64_t signals);
// Notes the signals that the main fiber lets in during the wait that it begins, although its mask blocks them. 0: the wait is over. They
// may be taken for some time after that, so they must have handlers.
void sched_open_for_main(uint64_t signals);
// Makes waits with kFollowsRealtime end from now on when that clock is set. Cheap, except for the first call.
void sysmon_follow_clock();
// Makes sysmon call Embedder::on_sysmon() soon. From any context, signal handlers too.
void sysmon_call();
// The same at sysmon's next look, within some milliseconds. Only a long sleep of sysmon's is ended for it.
void sysmon_call_later();
constexpr uint64_t kIdleMask = ~(kLibcsSignals | kTrapMask);  // all signals but libc's two and SIGSYS

}  // namespace fiberthread
