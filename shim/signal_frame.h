// SPDX-License-Identifier: MIT
// The stacks that handlers run on, and the frame that one gets there.
//
// Our kernel handler does not call the program's: it copies what the kernel saved to the fiber's own stack, or to the
// alternate one that the fiber has set, and lets the kernel return into the program's handler there. From its first
// instruction on that is ordinary fiber code, which may wait, move to another worker, or never return. When it does return,
// sched/arch/<cpu>/posix/signal_frame.S restores the interrupted code, wherever it then runs.
#pragma once
#include <signal.h>
#include <ucontext.h>

#include <cstdint>

#include "sched/arch/arch.h"
#include "shim/signal_parts.h"

// What stands there while the handler runs: struct Frame, with uc(); kMinAlternate, the kernel's MINSIGSTKSZ; frame_inject().
// clang-format off
#include FIBERTHREAD_CPU(posix/signal_frame.h)
// clang-format on

extern "C" {
// Where handlers return to; sched/arch/<cpu>/posix/signal_frame.S.
void fiberthread_sigreturn() __attribute__((visibility("hidden")));
extern const char fiberthread_sigreturn_end[] __attribute__((visibility("hidden")));
}

namespace fiberthread::signals {

// The kernel's ucontext ends after the first word of a sigset_t.
inline void set_words(sigset_t& set, uint64_t w) { memcpy(&set, &w, sizeof w); }

// In the kernel's handler, which interrupted `uc`, with tls_busy as it was then: makes the fiber go on in the program's
// handler, with `during` as its mask and `before` as the one that it returns to. False, and nothing done, if there is no room.
bool frame_enter(FiberRecord* me, const Action& a, int sig, const siginfo_t& info, ucontext_t* uc, uint32_t busy, uint64_t before,
                 uint64_t during);
// Is it the end of a handler that was interrupted? Then nothing can start there, but the end can be begun anew.
bool frame_ending(const ucontext_t* uc);
void frame_end_anew(ucontext_t* uc);
bool frame_ends_at(uintptr_t pc);  // Embedder::must_not_stop_at(): it is the code of such an end
// As fiberthread_signal_leave() begins and ends. `busy`: what tls_busy is to be.
void frame_leaving(FiberRecord* me, Frame* frame, uint32_t* busy);
void frame_left(FiberRecord* me, Frame* frame);

// The lowest address that a frame may have below `sp`; 0 on a stack that we do not know.
uintptr_t lowest_frame(const FiberRecord* me, uintptr_t sp);

// ---- the alternate stack ----

// As sigaltstack() from code with that stack pointer. 0 or an errno value.
int set_alternate(const stack_t& ss, uintptr_t sp);
// What a handler's uc_stack shows; the stack is disarmed if it was set so.
stack_t show_alternate();
void forget_alternate();  // of a thread that ends
stack_t alternate_now();
bool on_alternate_now();  // is the caller on it?
// Where a handler with these flags begins if the stack pointer is at `sp`; null: below it.
char* other_stack(const Action& a, uintptr_t sp);
// The same where Go's runtime, which asks the kernel, takes the stack that we gave to the kernel thread for one of its own.
char* stack_of_kernel_thread(FiberRecord* me, const Action& a, uintptr_t sp);

// sched/arch/<cpu>/posix/signal_frame.S
extern "C" void fiberthread_call_on(char* top, void (*function)(void*), void* argument) __attribute__((visibility("hidden")));
// libc may unwind out of the function because it has found a request to cancel: then cancel_leave() is called instead.
extern "C" void fiberthread_call_to_leave(void (*function)(void*), void* argument) __attribute__((visibility("hidden")));

}  // namespace fiberthread::signals
