// SPDX-License-Identifier: MIT
// How interrupted code is made to call a function. For preempt.cpp, whose inject_call() is what others use.
#pragma once
#include <ucontext.h>

#include <cstdint>

namespace fiberthread {

// Learns what of the processor's state has to be kept. False if there is some that we do not know how to keep.
bool inject_init();

// Bytes of stack below the interrupted stack pointer that inject() needs, without what the function takes.
uintptr_t inject_room(ucontext_t* uc);

// In a signal handler: the interrupted code calls fn() as soon as the handler returns. All registers are as before when fn() returns.
void inject(ucontext_t* uc, void (*fn)());

// Is that an instruction of our own way into the function or back?
bool injecting(uintptr_t pc);

// What the kernel returns to from a handler, for its sigaction. Null where the kernel has that itself.
extern void (*const kernel_restorer)();

}  // namespace fiberthread
