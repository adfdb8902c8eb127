// SPDX-License-Identifier: MIT
// Chooses the processor's folder, and includes two headers of it: its few instructions, and the registers of interrupted code.
// The declarations below say what these have to supply.
#pragma once
#include <ucontext.h>

#include <cstdint>

#if defined(__x86_64__)
#define FIBERTHREAD_CPU(header) <sched/arch/x86_64/header>
#elif defined(__aarch64__)
#define FIBERTHREAD_CPU(header) <sched/arch/aarch64/header>
#else
#error "fiberthread runs on x86-64 and AArch64"
#endif

namespace fiberthread {

// Passes a few cycles in a loop that waits for another thread.
void cpu_relax();

// Ticks of the constant-rate cycle counter. Not nanoseconds; only differences mean something.
uint64_t cycles();

// Read anew each time: the compiler's own builtin counts as constant, and would be kept across a switch.
void* thread_pointer();

// The system call as an instruction, of kSystemCallSize bytes. Returns what the kernel returned, so an error is a negative errno value.
long raw_syscall(long nr, long a, long b, long c, long d, long e, long f);

// A question to valgrind, in the instructions that it knows as one and a processor as nothing (valgrind.h); 0 without it: on how
// many valgrinds does this run?
unsigned running_on_valgrind();

// Keeps the control and status of floating point while the program's handler runs as a call. The handler starts with the initial ones (on
// AArch64 with those of the interrupted code), and its changes end with it.
class FloatingEnvironment;

// Registers of the code that a signal interrupted. The result is where a system call, or a function, leaves what it returns.
uintptr_t interrupted_pc(const ucontext_t* uc);
uintptr_t interrupted_sp(const ucontext_t* uc);
void set_interrupted_pc(ucontext_t* uc, uintptr_t pc);
void set_interrupted_result(ucontext_t* uc, long result);

}  // namespace fiberthread

#include FIBERTHREAD_CPU(instructions.h)
#include FIBERTHREAD_CPU(interrupted.h)
