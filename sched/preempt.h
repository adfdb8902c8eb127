// SPDX-License-Identifier: MIT
// Preemption of fibers that do not give way by themselves.
//
// Each worker has an interval timer on its own CPU clock, so it never interrupts a system call and stands still while
// the worker sleeps. Its signal runs on the worker's alternate stack and only decides; to preempt, it edits the
// interrupted context so that the kernel's own sigreturn continues in a trampoline on the fiber's stack, below the red
// zone. That saves every register, calls, and restores them on whatever worker it then runs. No signal frame outlives
// its handler, so none ever moves between workers.
//
// The timer's resolution is the kernel's tick. For stress tests, options.preempt_us asks for more: a perf event on the same
// clock then stands in for it, where the kernel allows that.
//
// AArch64 has no instruction that loads every register and jumps. There the code that is called returns as the embedder's signal
// handlers do (Embedder::inject): the kernel restores all registers, vectors of any length too, from a copy of the handler's frame on the
// fiber's stack.
#pragma once
#include <csignal>
#include <cstdint>

#include "sched/glibc/signals.h"

namespace fiberthread {

struct FiberRecord;
struct Worker;

// libc uses it to cancel its own threads, which never happens here, and therefore strips it from every mask and
// hides it from the program. The same signal, sent by anybody with tgkill, comes to Embedder::poked().
constexpr int kPreemptSignal = kLibcCancelSignal;
constexpr long kTickNs = 4'000'000;

// Installs the handler and learns the processor's register state and where libc, ld.so and this library are. Once per
// process before the first worker's preempt_start_worker, and again in a fork child. False if nothing can be preempted
// on this machine; Embedder::poked() is called even then. Takes the loader's lock: not in worker context.
bool preempt_init();

// After dlopen or dlclose: learns again which code is whose. Takes the loader's lock.
void preempt_look_at_objects();

// Called by each worker on itself: unblocks the signal and arms its timer.
void preempt_start_worker(Worker* w);
// Undoes it, before the worker's thread ends.
void preempt_end_worker(Worker* w);

// In this code only a fiber that sleeps in a system call is stopped. There is one such place.
void preempt_only_asleep(uintptr_t low, uintptr_t high);
// Asks the fiber on that worker, asleep in a system call, to give way; the call is begun anew when it runs again. One that
// the kernel does not restart ends with EINTR.
void preempt_sleeper(Worker* w);

// Workers that have a perf event instead, since the process began.
uint32_t preempt_sampled_workers();

// The kernel's own form of a signal's action, for signals that libc keeps to itself.
struct kernel_handler {
  void (*handler)(int, siginfo_t*, void*);
  unsigned long flags;
  void (*restorer)();
  uint64_t mask;
};
// Installs `handler` for `sig` on the alternate stack, everything blocked while it runs, interrupted calls restarted.
void install_kernel_handler(int sig, void (*handler)(int, siginfo_t*, void*), kernel_handler* old = nullptr);
void restore_kernel_handler(int sig, const kernel_handler& old);

// In a signal handler on the alternate stack: makes the interrupted fiber call fn() as soon as the handler returns,
// as if it had done so between two instructions. If fn returns, all registers are as before; it may also never
// return, and unwind through the interrupted frame. False, and nothing done, if the fiber cannot be stopped there:
// in this library, in ld.so, Busy, or on a stack that is unknown or has no room.
bool inject_call(void* ucontext, void (*fn)());

// Provided by the scheduler. Does anybody wait for a worker, so that `f`, which runs here, should give way? Called in
// the handler.
bool preempt_wanted(FiberRecord* f);
// Puts `f`, the caller, into the global queue (in front if f->in_libc) and switches away; returns when it runs again.
// Called Busy on the fiber's stack.
void preempt_switch_out(FiberRecord* f);

}  // namespace fiberthread
