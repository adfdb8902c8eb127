// SPDX-License-Identifier: MIT
// Threads as the rest of the shim needs them.
#pragma once
#include <pthread.h>

#include "sched/fiber.h"

namespace fiberthread {

// Returns a file's share of FiberRecord::embedder, which is all zero at birth. Bytes 0 to 95 are for shim/signal*.cpp, 96 to 111 for
// shim/cancel.cpp, 112 to 127 for shim/shared_use.cpp, 128 to 191 for shim/scheduling.cpp.
template <class T, size_t kOffset, size_t kEnd>
T& shim_share(FiberRecord* f) {
  static_assert(sizeof(T) <= kEnd - kOffset && kEnd <= sizeof f->embedder.room && alignof(T) <= 16 && kOffset % 16 == 0);
  return *reinterpret_cast<T*>(f->embedder.room + kOffset);
}

// Returns the fiber whose handle `t` is, main included, until it is joined or, if detached, has ended. Null for threads that are not ours
// (NPTL's own) and for stale handles of ours. Signal-safe.
FiberRecord* fiber_of(pthread_t t);
// Returns true if `t` is or was a handle of ours. If fiber_of() does not know such a handle, the answer is ESRCH. libc must not get it,
// since it would read the TCB.
bool stale_handle(pthread_t t);

// Starts the scheduler at the first thread. Returns false if threads are NPTL's. This and the next two are for threads that are made in
// steps.
bool thread_start_scheduler();
// Does all of pthread_create except what makes the thread run. Then the caller sets identity.start and identity.arg, calls thread_begin(),
// and after that sched_spawn() or sched_call(). Or it calls sched_discard() instead. A `stack_size` other than 0 goes before that of
// `attr`. Returns 0 or an errno value.
int thread_make(const pthread_attr_t* attr, size_t stack_size, FiberRecord** made);
void thread_begin(FiberRecord* f);

// Ends the calling fiber as pthread_exit does, unwinding it.
[[noreturn]] void thread_exit(void* value);
// Returns the address of the word that the kernel would clear at the calling fiber's end, were the fiber a kernel thread; see prctl(2),
// PR_GET_TID_ADDRESS.
uint32_t* tid_word();
// Clears the word that the calling fiber named by set_tid_address, when the fiber ends (syscall_threads.cpp).
void clear_named_word();
// Ends the calling fiber without any handler, as SYS_exit ends an NPTL thread.
[[noreturn]] void thread_exit_raw();

}  // namespace fiberthread
