// SPDX-License-Identifier: MIT
// Threads as the rest of the shim needs them.
#pragma once
#include <pthread.h>

#include "sched/fiber.h"

namespace fiberthread {

// Each file's share of FiberRecord::embedder, all zero at birth: bytes 0–95 shim/signal*.cpp, 96–111 shim/cancel.cpp, 112–127
// shim/shared_use.cpp, 128–191 shim/scheduling.cpp.
template <class T, size_t kOffset, size_t kEnd>
T& shim_share(FiberRecord* f) {
  static_assert(sizeof(T) <= kEnd - kOffset && kEnd <= sizeof f->embedder.room && alignof(T) <= 16 && kOffset % 16 == 0);
  return *reinterpret_cast<T*>(f->embedder.room + kOffset);
}

// The fiber whose handle `t` is, main included, until it is joined or, detached, has ended. Null for threads that are
// none of ours (NPTL's own) and for stale handles of ours. Signal-safe.
FiberRecord* fiber_of(pthread_t t);
// True if `t` was once a handle of ours: then an unknown one is ESRCH and must not reach libc, which would read the TCB.
bool stale_handle(pthread_t t);

// For threads that are made in steps. Starts the scheduler at the first thread; false if threads are NPTL's.
bool thread_start_scheduler();
// All of pthread_create but what makes it run: f->start and f->arg are the caller's to set before thread_begin(), after which
// comes sched_spawn() or sched_call(). Instead of these, sched_discard(). `stack_size` other than 0 goes before that of attr. 0, or
// an errno value.
int thread_make(const pthread_attr_t* attr, size_t stack_size, FiberRecord** made);
void thread_begin(FiberRecord* f);

// Ends the calling fiber as pthread_exit does, unwinding it.
[[noreturn]] void thread_exit(void* value);
// At its end: the word that the calling fiber named by set_tid_address. (syscall_threads.cpp)
void clear_named_word();
// Ends the calling fiber without any handler, as SYS_exit ends an NPTL thread.
[[noreturn]] void thread_exit_raw();

}  // namespace fiberthread
