// SPDX-License-Identifier: MIT
// Makes interrupted code call a function. For preempt.cpp only: other files use its inject_call().
#pragma once
#include <ucontext.h>

#include <cstdint>

namespace fiberthread {

// Learns which state of the processor has to be kept. Returns false if we do not know how to keep some of it, or if the way is not there.
bool inject_init();

// Returns how many bytes of stack below the interrupted stack pointer inject() needs, without those that the function uses.
uintptr_t inject_room(ucontext_t* uc);

// Makes the interrupted code call fn() as soon as the signal handler returns. Called in that handler. When fn() returns, all registers are
// as before.
void inject(ucontext_t* uc, void (*fn)());

// Returns true if `pc` is in our own code that calls the function and comes back from it.
bool injecting(uintptr_t pc);

// The code that a handler returns to, for the kernel's sigaction. Null where the kernel has code of its own for that.
extern void (*const kernel_restorer)();

}  // namespace fiberthread
