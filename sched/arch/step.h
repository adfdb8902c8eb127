// SPDX-License-Identifier: MIT
// Single steps: interrupted code runs one instruction, and traps. Only `sched/explore/step.cpp` uses this.
#pragma once
#include <ucontext.h>

#include <cstdint>

#include "sched/arch/arch.h"

namespace fiberthread {

// What the next instruction does with memory.
struct Access {
  enum Kind : uint8_t {
    None,           // nothing that another thread could see, as far as can be told: registers, the thread's own TLS, pushes and calls
    Once,           // it reads or writes, or does both as one
    ReadThenWrite,  // it reads, and then writes the same bytes. Another thread may write in between
    Barred,         // it must not be stepped: it enters the kernel, but for memory, or sees or changes the processor's flag for steps
  } kind = None;
  uint8_t size = 0;       // ReadThenWrite: of what it writes, in bytes
  uintptr_t address = 0;  // 0: not known
};
// Looks at the instruction where the code was interrupted.
Access next_access(const ucontext_t* uc);

// Says whether the interrupted code is stepped when it goes on.
void set_stepping(ucontext_t* uc, bool on);
// Steps the caller, from the next instruction but one. SIGTRAP must be ready for it.
void begin_stepping();
// Called by the function of an inject() that was made at the stack pointer `sp`: the interrupted code is stepped when it goes on.
void inject_stepping(uintptr_t sp);

}  // namespace fiberthread

#include FIBERTHREAD_CPU(step.h)
