// SPDX-License-Identifier: MIT
// Cancellation as the waiting calls see it (POSIX: XSH 2.9.5). A call that is a cancellation point looks with
// test_cancel() before it waits, waits with wait_interrupts(), and when its wait was ended by kInterruptUnwind puts its
// object in order and calls cancel_self().
#pragma once
#include <signal.h>

#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// Before the scheduler starts; idempotent.
void cancel_init();
// Embedder::thread_adopted(), end_requested() (the type is asynchronous, and cancel_pending()), end_requested_at().
void cancel_adopt(FiberRecord* f);
bool cancel_due(FiberRecord* me);
bool cancel_due_at(FiberRecord* me, uintptr_t pc);
// May a pthread_cancel of `me`, the caller, act now? False once it ends.
bool cancel_enabled(FiberRecord* me);
// Enabled, and asked for.
bool cancel_pending(FiberRecord* me);
// Ends the calling thread as cancelled: unwinds it. Holds nothing, not Busy.
[[noreturn]] void cancel_self();
// cancel_self() if cancel_pending().
void test_cancel();
// The same as pthread_testcancel() does it, which differs from libc's waits in the state that cleanup handlers find.
void test_cancel_as_libc();
// The caller's type, whatever its state.
bool cancel_is_asynchronous(FiberRecord* me);
// cancel_self() if that is pending and the caller's type is asynchronous.
void cancel_if_asynchronous();
// The caller ends, with that result: in a signal's handler that interrupts a wait by which others may find this stack, as of a mutex or a
// condition variable, the stack cannot be unwound. So the handler is left, without what it has pushed to be cleaned up, and the wait ends
// as if cancelled (kInterruptLeave), also where cancellation is disabled; at the latest wait_over() unwinds. Else it returns. (POSIX has
// no such pthread_exit(); those who miss pthread_cancel() do.)
void cancel_leave(FiberRecord* me, void* result);
// Embedder::poked(): the interrupted thread may have been cancelled.
void cancel_poked(siginfo_t* info, void* context);
// A handler that has interrupted `context` ends: if libc waits there, and a request came meanwhile, the wait ends.
void cancel_handler_over(FiberRecord* me, void* context);
// It is being unwound because libc found the request at a cancellation point of its own.
bool cancelled_by_libc(FiberRecord* me);
// The thread ends by itself: from now on nothing cancels it.
void cancel_begin_exit(FiberRecord* me);

// The fiber API's cancel: nothing is unwound, but each wait that is a cancellation point fails with ECANCELED.
inline bool end_pending(const FiberRecord* me) { return me->run.interrupts.load(std::memory_order_relaxed) & kInterruptEnd; }

// The interrupts that end a wait which is a cancellation point, besides `others`.
inline uint32_t wait_interrupts(FiberRecord* me, uint32_t others = 0) {
  return others | kInterruptEnd | kInterruptLeave | (cancel_enabled(me) ? uint32_t{kInterruptUnwind} : 0);
}
// A wait of a condition variable has no way to fail that programs expect: kInterruptEnd ends one of them, as a wake-up for no reason,
// and is then left alone. Returns true if it may end the wait that begins now.
bool end_may_end_wait(FiberRecord* me);
// It has ended a wait.
void end_has_ended_wait(FiberRecord* me);

}  // namespace fiberthread
