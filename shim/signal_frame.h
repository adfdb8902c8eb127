// SPDX-License-Identifier: MIT
// The stacks that handlers run on, and the frame that one gets there.
//
// Our kernel handler does not call the program's handler. It copies what the kernel saved to the fiber's own stack, or to the alternate
// stack that the fiber has set, and lets the kernel return into the program's handler there. From its first instruction on, that handler is
// ordinary fiber code. It may wait, move to another worker, or never return. When it does return, sched/arch/<cpu>/posix/signal_frame.S
// restores the interrupted code, on whatever worker it then runs.
#pragma once
#include <signal.h>
#include <ucontext.h>

#include <cstdint>

#include "sched/arch/arch.h"
#include "shim/signal_parts.h"

// Declares what stands there while the handler runs: struct Frame with uc(), kMinAlternate (the kernel's MINSIGSTKSZ) and frame_inject().
// clang-format off
#include FIBERTHREAD_CPU(posix/signal_frame.h)
// clang-format on

extern "C" {
// Handlers return to this, in sched/arch/<cpu>/posix/signal_frame.S.
void fiberthread_sigreturn() __attribute__((visibility("hidden")));
extern const char fiberthread_sigreturn_end[] __attribute__((visibility("hidden")));
}

namespace fiberthread::signals {

// The kernel's ucontext ends after the first word of a sigset_t.
inline void set_words(sigset_t& set, uint64_t w) { memcpy(&set, &w, sizeof w); }

// Makes the fiber go on in the program's handler, with `during` as its mask, and `before` as the mask that it returns to. Called in the
// kernel's handler, which interrupted `uc`. `busy` is tls_busy as it was then. Returns false, and does nothing, if there is no room.
bool frame_enter(FiberRecord* me, const Action& a, int sig, const siginfo_t& info, ucontext_t* uc, uint32_t busy, uint64_t before,
                 uint64_t during);
// Returns true if `uc` is in the end of a handler. No other handler can start there, but the end can begin anew.
bool frame_ending(const ucontext_t* uc);
void frame_end_anew(ucontext_t* uc);
bool frame_ends_at(uintptr_t pc);  // Embedder::must_not_stop_at(): `pc` is in the code of such an end
// Called at the begin and at the end of fiberthread_signal_leave(). `busy` gets what tls_busy will be.
void frame_leaving(FiberRecord* me, Frame* frame, uint32_t* busy);
void frame_left(FiberRecord* me, Frame* frame);

// Returns the lowest address that a frame may have below `sp`. 0 if the stack is not known.
uintptr_t lowest_frame(const FiberRecord* me, uintptr_t sp);

// ---- the alternate stack ----

// Does what sigaltstack() does when the caller's stack pointer is `sp`. Returns 0 or an errno value.
int set_alternate(const stack_t& ss, uintptr_t sp);
// Returns what a handler's uc_stack shows. Disarms the stack if the program has asked for that.
stack_t show_alternate();
void forget_alternate();  // called when a thread ends
// Returns the alternate stack that the caller has set.
stack_t alternate_now();
bool on_alternate_now();  // returns true if the caller runs on it
// Returns where a handler with these flags begins if the stack pointer is at `sp`. Null: below `sp`.
char* other_stack(const Action& a, uintptr_t sp);
// Does the same for Go's runtime, which asks the kernel. It takes the stack that we gave to the kernel thread for one of its own.
char* stack_of_kernel_thread(FiberRecord* me, const Action& a, uintptr_t sp);

// sched/arch/<cpu>/posix/signal_frame.S
extern "C" void fiberthread_call_on(char* top, void (*function)(void*), void* argument) __attribute__((visibility("hidden")));
// Calls the function. If libc unwinds out of it because it has found a request to cancel, cancel_leave() is called.
extern "C" void fiberthread_call_to_leave(void (*function)(void*), void* argument) __attribute__((visibility("hidden")));

}  // namespace fiberthread::signals
