// SPDX-License-Identifier: MIT
// For this folder only: what differs from processor to processor. That is TLS, of which the ELF ABI has two variants, and the look of some
// instructions of libc. Each processor's glibc.h supplies what is declared here.
#pragma once
#include <ucontext.h>

#include "sched/arch/arch.h"
#include "sched/glibc/layout.h"

namespace fiberthread::glibc {

inline uintptr_t align_down(char* p, size_t alignment) { return reinterpret_cast<uintptr_t>(p) & ~(alignment - 1); }

// The constants are these: kTcbAlign, in bytes; kRseqSignature; and kPlaceTellsSize, which is true if a wrong size of struct pthread shows
// in where libc places it, and not in the thread pointer.

char* thread_pointer_of(void* pd);
// The greatest offset that the word with the dtv's address may end at.
size_t dtv_limit(size_t sizeof_pthread);
// Where libc places struct pthread, if TCB and static TLS are to end at `top`.
char* place(char* top);
size_t tcb_and_tls_size();
// The lowest address that struct pthread and static TLS take then.
char* low_end(char* top);
// Turns a link_map's l_tls_offset into an offset from the thread pointer. Returns false for a module without static TLS.
bool static_tls_offset(ptrdiff_t l_tls_offset, ptrdiff_t& offset);

// The return address of an interrupted function that has pushed nothing yet.
uintptr_t return_address(const ucontext_t* uc);
bool is_system_call(uintptr_t at);
// Returns the address that the direct call before `back` calls, or 0 if there is no such call.
uintptr_t called_before(uintptr_t back);

}  // namespace fiberthread::glibc

#include FIBERTHREAD_CPU(glibc.h)
