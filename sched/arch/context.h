// SPDX-License-Identifier: MIT
// The context switch. Its code is in the processor's folder, in context.S and context.cpp.
#pragma once
#include <cstddef>
#include <cstdint>

#include "sched/arch/arch.h"

namespace fiberthread {

struct Context {
  void* sp = nullptr;  // the saved frame, drawn in context.S; SavedFrame is its type
  void* tp = nullptr;  // thread pointer
};
static_assert(offsetof(Context, sp) == 0 && offsetof(Context, tp) == 8, "context.S has these typed in");

extern "C" {
// Saves the caller into *from and continues *to, thread pointer included. Returns when a later switch continues *from.
void fiberthread_switch(Context* from, Context* to);
// The first code of a new fiber. Calls entry(arg), and then fiberthread_end() (life/birth.cpp) if that returns.
void fiberthread_entry();
void fiberthread_end() __attribute__((visibility("hidden")));
// 1 if user code may write the thread pointer itself (FSGSBASE). Otherwise a switch asks the kernel. Always 1 on AArch64.
extern int fiberthread_fsgsbase __attribute__((visibility("hidden")));
}

// Does what fiberthread_switch() does, inline. On x86-64 it enters the switch by a jump, for the processor's predictions.
void switch_context(Context* from, Context* to);

// Learns what the processor can do. Called once, before anything else of this header is used.
void context_init();

// Lays out a first frame on the stack that ends at `stack_high`, rounded down to 16 bytes. The first switch to `c` then calls entry(arg),
// with the caller's control words of floating point, and on x86-64 its base of GS.
void make_context(Context& c, char* stack_high, void* tp, void (*entry)(void*), void* arg);

void set_thread_pointer(void* tp);

// Returns false if a filter of system calls refuses what a switch asks of the kernel.
bool may_switch();

// Returns true if the calling thread has a shadow stack, where the processor keeps return addresses a second time. A switch would leave it
// behind.
bool has_shadow_stack();

// Returns true if the kernel is a hypervisor's guest, as far as libc knows.
bool is_guest();
// Returns true if the kernel, as a guest, takes idle CPUs for stopped ones, and so does not choose them for threads that it wakes.
// Takes 30 us. Called if is_guest().
bool shuns_idle_cpus();

}  // namespace fiberthread

#include FIBERTHREAD_CPU(context.h)
