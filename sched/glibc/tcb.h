// SPDX-License-Identifier: MIT
// A glibc thread control block (TCB: libc's struct pthread) and static TLS for every fiber and worker. README.md tells how their layout is
// found.
#pragma once
#include <cstddef>
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// ---- blocks ----

// Returns the most bytes that TCB and static TLS take at the top of a block, alignment included.
size_t tcb_reserve();
// Returns the lowest address that tcb_make(top) uses. The stack of the block begins here and grows down.
char* tcb_low(char* top);
// Returns the power of two that libc rounds the sizes of stacks down to.
size_t tcb_align();
// Returns the size of the smallest stack that libc makes a thread with. TLS and TCB are part of it.
size_t tcb_least_stack();
// Returns the size of libc's struct pthread.
size_t tcb_size();
// Returns the size of the stack for a kernel thread that libc makes for the library. libc takes the room for TCB and static TLS from it,
// and a program may have any amount of static TLS.
size_t tcb_libc_stack_size();

// Makes TCB and TLS below `top`, with all modules' TLS initialised, and links the TCB into libc's list of threads. Sets f.tcb and
// f.context.tp. Calls malloc, so only a fiber or a native thread may call it. Returns false without memory.
bool tcb_make(FiberRecord& f, char* top);

// Makes TCB and TLS below `top` for a worker with that stack. Returns the thread pointer. Takes no lock of libc.
void* tcb_make_worker(char* top, char* stack_low, char* stack_high, Worker* w);

// ---- the life of a fiber ----

// Writes the bounds of the stack and the fiber's id into the TCB, at the fiber's birth.
void tcb_begin(FiberRecord& f);

// Takes back a request to cancel, and all else that libc's word of cancellation says.
void tcb_forget_request(FiberRecord& f);

// Does what libc does first in a new thread. Called on the fiber, before any code of the program.
void tcb_first_steps();

// Runs the calling fiber's thread_local destructors.
void tcb_call_tls_destructors();

// Frees dynamic TLS, sets every module's static TLS but libc's back to its image, and resets errno, locale and cancellation. Called on the
// fiber itself at its end, after all of the program's destructors. Its block can have a new fiber at once.
void tcb_end(FiberRecord& f);

// Calls use(), and finds out which words it changes in the caller's TCB. Undoes these changes there, and from then on in each TCB that
// tcb_end() is called for. Busy.
void tcb_learn(void (*use)());

// ---- the end of a block ----

// Returns true if nothing in the block's TLS can own memory of libc. Such a block needs tcb_release() only.
bool tcb_is_pristine(const FiberRecord& f);
// For any other block, a native thread exits on the block's thread pointer, so that libc frees what the block's TLS owns.
// tcb_prepare_adoption() is called before that thread is made, and the thread itself calls tcb_adopt(). When it has exited,
// tcb_release() is called.
void tcb_prepare_adoption(FiberRecord& f);
void tcb_adopt(FiberRecord& f);
// Takes the TCB out of libc's list and frees its dtv. Takes locks of libc.
void tcb_release(FiberRecord& f);

// ---- fields of a TCB ----

// The field that says where unwinding by libc's pthread_exit ends: a sigsetjmp'ed __pthread_unwind_buf_t, or null.
void** tcb_cleanup_jmp_buf(void* tcb);
// libc's word of cancellation. If nothing has been learnt about this libc, a word that stays 0.
uint32_t* tcb_cancelhandling(void* tcb);
uint32_t* tcb_tid(void* tcb);
// Returns the record of the thread with that TCB. It is null for a foreign thread that has not needed a record.
FiberRecord* tcb_fiber(void* tcb);
// Returns the head of the thread's list of robust mutexes, in the kernel's form. Null if its place is unknown.
void* tcb_robust_list(void* tcb);
void* tcb_thread_pointer(void* tcb);

// ---- for this folder only ----
namespace glibc {

// Makes TCB and TLS below `top`, not linked into the list. Returns struct pthread, or null without memory. Calls malloc.
char* make_tcb(char* top);

}  // namespace glibc
}  // namespace fiberthread
