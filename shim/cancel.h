// SPDX-License-Identifier: MIT
// Cancellation as the waiting calls see it (POSIX: XSH 2.9.5). A call that is a cancellation point calls test_cancel() before it waits. It
// waits with wait_interrupts(). If kInterruptUnwind ended its wait, the call puts its object in order and calls cancel_self().
#pragma once
#include <signal.h>

#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// Called before the scheduler starts. Idempotent.
void cancel_init();
// Called by the thread that has started the scheduler: struct pthread is known then.
void cancel_scheduler_started();
// Entries of Embedder: thread_adopted(), end_requested() and end_requested_at(). cancel_due() is true if the caller's type is asynchronous,
// or cancel_leave() has been called, and cancel_pending().
void cancel_adopt(FiberRecord* f);
bool cancel_due(FiberRecord* me);
bool cancel_due_at(FiberRecord* me, uintptr_t pc);
// Returns true if a pthread_cancel of `me`, the caller, may act now. False once the caller has begun to end.
bool cancel_enabled(FiberRecord* me);
// Returns true if cancellation of `me` is enabled and has been requested.
bool cancel_pending(FiberRecord* me);
// Ends the calling thread as cancelled, by unwinding it. The caller holds no lock and is not Busy.
[[noreturn]] void cancel_self();
// Calls cancel_self() if cancel_pending().
void test_cancel();
// Does the same as pthread_testcancel() does it. libc's waits differ from that in the cancellation state that cleanup handlers find.
void test_cancel_as_libc();
// Returns true if the type of `me`, the caller, is asynchronous, whatever its state.
bool cancel_is_asynchronous(FiberRecord* me);
// Calls cancel_self() if cancellation is due for the calling fiber and it is in no wait (in_wait()).
void cancel_if_asynchronous();
// Ends the caller with `result` if it runs a handler of a signal that has interrupted a wait by which others may find this stack, as that
// for a mutex or a condition variable. Such a stack cannot be unwound. So this jumps out of the handler, without the cleanup handlers that
// it has pushed. The wait then ends as if cancelled (kInterruptLeave), even where cancellation is disabled; wait_over() unwinds at the
// latest. In any other case this returns. (POSIX has no such pthread_exit(). Programs that lack pthread_cancel() do it.)
void cancel_leave(FiberRecord* me, void* result);
// Embedder::poked(). The interrupted thread may have been cancelled.
void cancel_poked(siginfo_t* info, void* context);
// Called when a handler ends that has interrupted `context`. If libc waits there, and a request came meanwhile, the wait ends.
void cancel_handler_over(FiberRecord* me, void* context);
// Returns true if `me` is being unwound because libc found the request at a cancellation point of its own.
bool cancelled_by_libc(FiberRecord* me);
// Called when the thread begins to end by itself. From now on nothing cancels it.
void cancel_begin_exit(FiberRecord* me);

// Returns true if the fiber API has cancelled `me`. Nothing is unwound, but each wait that is a cancellation point fails with ECANCELED.
inline bool end_pending(const FiberRecord* me) { return me->run.interrupts.load(std::memory_order_relaxed) & kInterruptEnd; }

// Returns the interrupts that end a wait which is a cancellation point, besides `others`.
inline uint32_t wait_interrupts(FiberRecord* me, uint32_t others = 0) {
  return others | kInterruptEnd | kInterruptLeave | (cancel_enabled(me) ? uint32_t{kInterruptUnwind} : 0);
}
// Returns true if kInterruptEnd may end the wait of a condition variable that begins now. Such a wait has no error that programs expect. So
// kInterruptEnd ends one of them, as a spurious wake-up, and the later ones ignore it.
bool end_may_end_wait(FiberRecord* me);
// Notes that kInterruptEnd has ended such a wait.
void end_has_ended_wait(FiberRecord* me);

}  // namespace fiberthread
