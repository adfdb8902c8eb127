// Chooses the processor's folder, and includes from it what many files need: its few instructions, and the registers of interrupted code.
// Here is what they mean.
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

// A few cycles of a loop that waits for another thread.
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

// Keeps the control and status of floating point while the program's handler runs as a call. A handler starts with the initial one (on
// AArch64 with what it interrupts) and changes nothing for that.
class FloatingEnvironment;

// Of the code that a signal interrupted. Its result is what a system call, or a function, would return there.
uintptr_t interrupted_pc(const ucontext_t* uc);
uintptr_t interrupted_sp(const ucontext_t* uc);
void set_interrupted_pc(ucontext_t* uc, uintptr_t pc);
void set_interrupted_result(ucontext_t* uc, long result);

}  // namespace fiberthread

#include FIBERTHREAD_CPU(instructions.h)
#include FIBERTHREAD_CPU(interrupted.h)
