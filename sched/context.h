// The context switch: what is saved, and where. The code is in context_<arch>.S.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fiberthread {

struct Context {
  void* sp = nullptr;  // the saved frame, drawn in context_<arch>.S
  void* tp = nullptr;  // thread pointer
};
static_assert(offsetof(Context, sp) == 0 && offsetof(Context, tp) == 8, "context_<arch>.S has these typed in");

extern "C" {
// Saves the caller into *from and continues *to, thread pointer included. Returns when somebody switches back.
void fiberthread_switch(Context* from, Context* to);
// Where a new fiber begins; calls entry(arg), which must not return.
void fiberthread_entry();
// 1 if user code may write the thread pointer itself (FSGSBASE); else the switch asks the kernel. Always 1 on AArch64.
extern int fiberthread_fsgsbase __attribute__((visibility("hidden")));
}

// Looks what the processor can do. Once, before anything else of this header.
void context_init();

// Lays out a first frame on the stack that ends at `stack_high` (16-byte aligned), so that switching to `c` calls
// entry(arg) with the floating-point control words of the caller.
void make_context(Context& c, char* stack_high, void* tp, void (*entry)(void*), void* arg);

void set_thread_pointer(void* tp);

}  // namespace fiberthread
