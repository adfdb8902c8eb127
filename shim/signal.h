// SPDX-License-Identifier: MIT
// Signals.
//
// One kernel handler of ours stands for every signal that the program handles. It runs on the worker's signal stack and
// decides whose the signal is: of the running fiber if it was sent to that thread, else of the main fiber if that has
// it unblocked (programs rely on it), else of any that has. If that one is running here, and not Busy, it goes on in the
// program's handler, on its own stack, when ours returns (signal_frame.h). Else the signal is recorded, and runs as a call
// on its fiber's stack when that leaves Busy; a parked fiber is woken, one in a system call is interrupted. Either way
// handlers are ordinary fiber code.
//
// The kernel's mask of a worker is that of the fiber which it runs, sysmon's that of the main fiber, and for what only other
// parked fibers have unblocked, or wait for, there is a listener (signal_listen.cpp). So default actions,
// exec'd children and signals that all block are as on NPTL. Until the first thread is made, nothing of this is in place.
#pragma once
#include <signal.h>

#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// Takes over the handlers that the program has installed. Before the scheduler starts, by whoever starts it; idempotent.
void signal_init();
// After the scheduler has started: sysmon takes process-directed signals as the main fiber would.
void signal_scheduler_started();
// FIBERTHREAD_DUMP_SIGNAL: not a fault's, nor one that nobody can handle.
bool signal_may_dump(int sig);
// At library start: from now on options.dump_signal shows all fibers, unless the program ignores it; whatever handler the program
// has for it runs too.
void signal_dump_init();
// Before a new fiber is spawned, with its mask.
void signal_thread_begins(FiberRecord* f);
// The calling thread ends: what is pending for the process goes to another one.
void signal_thread_ends(FiberRecord* me);

// Embedder::at_safe_point(): runs the handlers of what was recorded for `me`, the caller.
void signal_at_safe_point(FiberRecord* me);

// In the kernel's handler: if that found the fiber at the end of a handler, what is pending is looked for there once more.
void signal_look_again(void* ucontext);
// Of who ends: where to jump so that the handler is left that has interrupted a wait by which others may find this stack
// (FiberRecord::wait.pins); null: there is none.
void** signal_handler_to_leave(FiberRecord* me);
// The handlers that ended the caller's last wait, did they all ask for SA_RESTART?
bool signal_restarts(FiberRecord* me);
// How many handlers of the program the caller has run: what has ended a call with EINTR meanwhile, if none, was a signal of ours.
uint32_t signal_handlers_begun();

// Around a call that waits with another mask (ppoll and its kin): gives the old one, and is Busy from then on until the end.
// Signals that come meanwhile and are not blocked run at the end, the first still with that mask, if they `interrupted` the call.
// One that parks is found by signals for the process, and interrupted by what is pending already.
enum class MaskedWait { InKernel, Parks };
uint64_t signal_begin_mask(FiberRecord* me, uint64_t mask, MaskedWait wait);
bool signal_end_mask(FiberRecord* me, uint64_t old, bool interrupted);  // a handler has run
// A system call that waits in the kernel with another mask; a cancellation point. Only where masks are ours: for fibers.
long signal_masked_call(uint64_t mask, long number, long a, long b, long c, long d, long e, long f = 0);
bool signal_mask_is_ours();
// Under Busy: is there a signal that will be handled once that ends? If not, forgets that there was said to be.
bool signal_is_pending(FiberRecord* me);

// SIGPIPE as the kernel raises it for a write of the caller's.
void signal_raise_pipe();
// A system call of the caller's has just ended with EPIPE: if it blocks SIGPIPE, that is pending on this kernel thread, and becomes
// the fiber's own.
void signal_take_pipe();

// Sends to one thread. `info` may be null: as by pthread_kill. 0 or an errno value.
int signal_send(FiberRecord* to, int sig, const siginfo_t* info);
// The same, by the tid that gettid() gives.
int thread_kill_tid(int tgid, int tid, int sig, const siginfo_t* info);
// rt_sigprocmask for the calling thread, as pthread_sigmask. 0 or an errno value.
int signal_mask_raw(int how, const uint64_t* set, uint64_t* old);
// As sigpending(), of a fiber.
uint64_t signal_pending_set(FiberRecord* me);

// True in the child of a vfork that has not exec'ed: our memory is the parent's then, and must not be changed.
bool in_vfork_child();

}  // namespace fiberthread
