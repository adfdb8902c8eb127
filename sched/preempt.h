// SPDX-License-Identifier: MIT
// Preemption of fibers that do not give way by themselves.
//
// Each worker has an interval timer on its own CPU clock. So the timer never interrupts a system call, and stands still while the worker
// sleeps. The handler of its signal runs on the worker's alternate stack, and only decides. To preempt, it edits the interrupted context so
// that the kernel's own sigreturn continues in a trampoline on the fiber's stack, below the red zone. The trampoline saves every register,
// calls a function, and restores the registers on the worker that the fiber is on by then. No signal frame outlives its handler, so none
// ever moves between workers.
//
// The timer's resolution is the kernel's tick. For stress tests, options.preempt_us asks for a finer one. A perf event then takes the
// timer's place, where the kernel allows that.
//
// AArch64 has no instruction that loads every register and jumps. There the called function returns as the embedder's signal handlers do
// (Embedder::inject): the kernel restores all registers, vectors of any length too, from a copy of the handler's frame on the fiber's
// stack.
#pragma once
#include <csignal>
#include <cstdint>

#include "sched/glibc/signals.h"

namespace fiberthread {

struct FiberRecord;
struct Worker;

// libc uses this signal to cancel its own threads, which never happens here. So libc strips it from every mask, and hides it from the
// program. If any thread sends it with tgkill(), Embedder::poked() is called.
constexpr int kPreemptSignal = kLibcCancelSignal;
constexpr long kTickNs = 4'000'000;

// Installs the handler, and finds out the processor's register state and where libc, ld.so and this library are. Called once per process
// before the first worker's preempt_start_worker(), and again in the child of a fork. Returns false if no fiber can be preempted on this
// machine. Embedder::poked() is called even then. Takes the loader's lock, so not in worker context.
bool preempt_init();

// Finds out again which code is libc's, ld.so's and this library's. Called after dlopen() or dlclose(). Takes the loader's lock.
void preempt_look_at_objects();

// Unblocks the signal and arms the worker's timer. Called by each worker for itself.
void preempt_start_worker(Worker* w);
// Deletes the timer, before the worker's thread ends.
void preempt_end_worker(Worker* w);

// Lets only preempt_sleeper() stop a fiber in this code. There is one such range.
void preempt_only_asleep(uintptr_t low, uintptr_t high);
// Asks the fiber on that worker, which is asleep in a system call, to give way. The call begins anew when the fiber runs again. A call that
// the kernel does not restart ends with EINTR.
void preempt_sleeper(Worker* w);

// Makes the worker's kernel thread let SIGSYS in, whatever it does now. See sched_open_trap().
void preempt_let_trap_in(Worker* w);

// Sends a signal to the worker's kernel thread, unless that executes a program. Null: by tgkill(). For signals that the library sends for its
// own purposes, and that may come after the reason for them is gone. If `unblocked_by` is not null, only while that fiber does not block it. A
// fiber that has blocked it, and then finds no sender (Worker::Thread), gets none.
void signal_worker(Worker* w, int sig, const siginfo_t* info, const FiberRecord* unblocked_by = nullptr);
// Waits until no thread is about to send such a signal to `w`, the caller's. Each takes some instructions.
void await_senders(Worker* w);
// Called by `w` before and after execve(), under Busy. No signal of signal_worker() and no tick comes in between: the kernel would give it to
// the new program, which has no handler for it.
void preempt_begin_exec(Worker* w);
void preempt_end_exec(Worker* w);

// Returns the number of workers that have a perf event in place of the timer.
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

// Makes the interrupted fiber call fn() as soon as the handler returns, as if it had done so between two instructions. Called in a signal
// handler on the alternate stack. If fn() returns, all registers are as before. It may also never return, and unwind through the
// interrupted frame. Returns false, and does nothing, if the fiber cannot be stopped there: in this library, in ld.so, under Busy, or on a
// stack that is unknown or has no room.
bool inject_call(void* ucontext, void (*fn)());
// Returns true if `pc` is in code of the program, which is neither libc's nor the library's.
bool preempt_in_program(uintptr_t pc);

// Which fibers wait for a worker. Others: some that are no hogs, or the fiber in question must move to a worker of its own.
enum class Waiting { Nobody, Hogs, Others };
// Returns for which fibers the running fiber `f`, the caller, should give way. Called in the handler. In sched/run, as are the next two functions.
Waiting preempt_wanted_by(FiberRecord* f);
// Returns after how many ticks a hog of this worker gives way to other hogs. Called in the handler.
uint8_t hog_turn(const Worker* w);
constexpr uint8_t kLongestTurn = 16;  // the most that hog_turn() returns
// Queues `f`, the caller, and switches away. f goes to the front of the global queue if turns.in_libc is set, to the hogs if it is one, to
// the heavy ones while there is a reserve, and otherwise to its slot's own queue. Returns when f runs again. Called under Busy, on the fiber's stack.
void preempt_switch_out(FiberRecord* f);

}  // namespace fiberthread
