// SPDX-License-Identifier: MIT
// Chooses the processor's folder, and includes three headers of it: single instructions, the registers of interrupted code, and pages. The
// declarations below say what the first two have to supply.
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

// Returns true if this instruction, of kPauseSize bytes, is one with which programs wait so.
bool is_pause(const unsigned char* code);

// Ticks of the constant-rate cycle counter. Not nanoseconds; only differences mean something.
uint64_t cycles();

// Returns the thread pointer, and reads it anew each time. The compiler takes its own builtin for constant, and would keep its value across
// a switch.
void* thread_pointer();

// Makes a system call by the instruction itself, which has kSystemCallSize bytes. Returns what the kernel returned, so an error is a
// negative errno value.
long raw_syscall(long nr, long a, long b, long c, long d, long e, long f);

// Returns on how many valgrinds this runs, 0 without valgrind. It asks by instructions that valgrind takes for a question, and a processor
// for no operation (valgrind.h).
unsigned running_on_valgrind();

// Keeps the control and status of floating point while the program's handler runs as a call. The handler starts with the initial values (on
// AArch64 with those of the interrupted code), and its changes end with it.
class FloatingEnvironment;

// Registers of the code that a signal interrupted. kLoopRegisters is the number of those in which loops keep their variables. The result is
// the register in which a system call or a function returns its value.
uintptr_t interrupted_pc(const ucontext_t* uc);
uintptr_t interrupted_sp(const ucontext_t* uc);
constexpr unsigned kLoopRegisters = 16;
uint64_t interrupted_register(const ucontext_t* uc, unsigned i);  // one of these
void set_interrupted_pc(ucontext_t* uc, uintptr_t pc);
void set_interrupted_result(ucontext_t* uc, long result);

}  // namespace fiberthread

#include FIBERTHREAD_CPU(instructions.h)
#include FIBERTHREAD_CPU(interrupted.h)
#include FIBERTHREAD_CPU(page.h)

namespace fiberthread {

// Rounds up to whole pages.
inline size_t to_pages(size_t size) { return (size + page_size() - 1) & ~(page_size() - 1); }

}  // namespace fiberthread
