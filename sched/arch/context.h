// SPDX-License-Identifier: MIT
// The context switch: what is saved, and where. The code is in the processor's folder, in context.S and context.cpp.
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
// Saves the caller into *from and continues *to, thread pointer included. Returns when somebody switches back.
void fiberthread_switch(Context* from, Context* to);
// Where a new fiber begins; calls entry(arg), and ends by fiberthread_end() (life/birth.cpp) if that returns.
void fiberthread_entry();
void fiberthread_end() __attribute__((visibility("hidden")));
// 1 if user code may write the thread pointer itself (FSGSBASE); else the switch asks the kernel. Always 1 on AArch64.
extern int fiberthread_fsgsbase __attribute__((visibility("hidden")));
}

// fiberthread_switch() for where speed matters: inline, and by a jump where the processor has a use for that.
void switch_context(Context* from, Context* to);

// Looks what the processor can do. Once, before anything else of this header.
void context_init();

// Lays out a first frame on the stack that ends at `stack_high` (16-byte aligned), so that switching to `c` calls
// entry(arg) with the floating-point control words of the caller.
void make_context(Context& c, char* stack_high, void* tp, void (*entry)(void*), void* arg);

void set_thread_pointer(void* tp);

// False if a filter that was there before us refuses what a switch asks of the kernel.
bool may_switch();

// Has the calling thread a shadow stack, where the processor keeps return addresses a second time? A switch would leave it behind.
bool has_shadow_stack();

}  // namespace fiberthread

#include FIBERTHREAD_CPU(context.h)
