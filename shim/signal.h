// SPDX-License-Identifier: MIT
// Signals.
//
// One kernel handler of ours stands for every signal that the program handles. It runs on the worker's signal stack and decides which fiber
// gets the signal. If the signal was sent to this thread, that is the running fiber. Else it is the main fiber if that has the signal
// unblocked (programs rely on it), else any fiber that has. If the chosen fiber runs here and is not Busy, it goes on in the program's
// handler, on its own stack, when our handler returns (signal_frame.h). Else the signal is recorded. It then runs as a call on the fiber's
// stack when the fiber leaves Busy. A parked fiber is woken for it, and one in a system call is interrupted. Either way handlers are
// ordinary fiber code.
//
// The kernel's mask of a worker is that of the fiber which it runs. Sysmon has the mask of the main fiber. Signals that only other parked
// fibers have unblocked, or wait for, go to a listener (signal_listen.cpp). So default actions, exec'ed children, and signals that all
// fibers block are as on NPTL. Until the first thread is made, nothing of this is in place.
#pragma once
#include <errno.h>
#include <signal.h>

#include <atomic>
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

// Looks up what handlers will call. Called before the scheduler starts, by the thread that starts it. Idempotent.
void signal_init();
// Embedder::before_start(): takes over the handlers that the program has installed. Where threads stay NPTL's, they stay the kernel's.
// Idempotent.
void signal_take_over();
// Called after the scheduler has started: sysmon takes process-directed signals as the main fiber would.
void signal_scheduler_started();
void signal_new_process();  // this is another process than the one whose scheduler started
// Called by main, which has just become a fiber and is still on its kernel thread, under Busy. Makes the signals that are pending for that
// kernel thread pending for main, because other fibers will run there.
void signal_adopt_pending(FiberRecord* me);
// Returns true if `sig` may be FIBERTHREAD_DUMP_SIGNAL: not a fault's signal, nor one that a program cannot handle.
bool signal_may_dump(int sig);
// Called at the start of the library. From now on options.dump_signal shows all fibers, unless the program ignores that signal. If the
// program has a handler for it, that runs too.
void signal_dump_init();
// From the scheduler's start on, the signals of crashes come to the library first, for FIBERTHREAD_RECORD.
void signal_record_init();
// Called before a new fiber is spawned, once it has its mask.
void signal_thread_begins(FiberRecord* f);
// Called when the calling thread ends. What is pending for the process goes to another thread.
void signal_thread_ends(FiberRecord* me);

// Embedder::at_safe_point(): runs the handlers of the signals that were recorded for `me`, the caller.
void signal_at_safe_point(FiberRecord* me);

// Called in the kernel's handler. If that has interrupted the end of a handler, the fiber looks once more for what is pending there.
void signal_look_again(void* ucontext);
// Returns the jump target for abandoning the handler that has interrupted a wait of `me`, the exiting thread, by which others may find this
// stack (FiberRecord::wait.pins). Null: there is no such handler.
void** signal_handler_to_leave(FiberRecord* me);
// Returns true if all handlers that ended the caller's last wait asked for SA_RESTART.
bool signal_restarts(FiberRecord* me);
// Returns how many handlers of the program the caller has run.
uint32_t signal_handlers_begun();
// Returns true if the caller is a fiber, so its mask and handlers are ours. False in the child of a vfork.
bool signal_mask_is_ours();
// The signals that the program has asked for with signalfd(). Most programs have none.
extern std::atomic<uint64_t> signalfd_shows;
bool signal_show_pending_slow();
// Called before the caller asks the kernel whether a descriptor is ready, and once more after a wait was interrupted. A signalfd shows what
// the kernel keeps. So the kernel gets what the library keeps for the caller and a signalfd may show, and the caller gets a kernel thread of
// its own for that. Returns true if the caller shall wait in the kernel. May park.
inline bool signal_show_pending() {
  return __builtin_expect(signalfd_shows.load(std::memory_order_relaxed) != 0, 0) && signal_show_pending_slow();
}
// Returns true if signal_show_pending() would find something. Also under Busy.
bool signal_is_to_be_shown(FiberRecord* me);
// Made before a wait. kInterruptSafePoint may end a wait though there is nothing to handle: the signal that it stood for has been handled
// just before, or by another thread. Then the wait goes on. Only on fibers: elsewhere the kernel may call the program's handlers itself,
// which are not counted, and no signal comes that is another thread's.
class HandlersBefore {
 public:
  bool none_since() const { return signal_handlers_begun() == count_ && signal_mask_is_ours(); }

 private:
  uint32_t count_ = signal_handlers_begun();
};
// Makes a system call that asks without waiting. A signal that comes just then ends even such a call, and may be another thread's or the
// library's.
template <class Call>
long at_once(Call call) {
  long r;
  do r = call();
  while (r == -EINTR);
  return r;
}
// Makes a call of libc's that waits in the kernel. A signal of the library's, or one for another fiber, does not end it, but a request of
// the fiber API that the caller's waits end does.
template <class Call>
auto despite_others(Call call) {
  for (;;) {
    go_to_own_worker();
    HandlersBefore handlers;
    auto r = call();
    if (__builtin_expect(r >= 0, 1) || errno != EINTR || !handlers.none_since()) return r;
    if (tls_current && tls_current->run.interrupts.load(std::memory_order_relaxed) & kInterruptEnd) return r;
    signal_show_pending();
  }
}

// These two surround a call that waits with another mask (ppoll and its kin). signal_begin_mask() returns the old mask, and the caller is
// Busy from then on until signal_end_mask(). Signals that come meanwhile and are not blocked run at the end if they `interrupted` the call,
// the first of them still with that mask. A caller that parks can be chosen for signals to the process, and signals that are pending
// already interrupt it.
enum class MaskedWait { InKernel, Parks };
uint64_t signal_begin_mask(FiberRecord* me, uint64_t mask, MaskedWait wait);
bool signal_end_mask(FiberRecord* me, uint64_t old, bool interrupted);  // returns true if a handler has run
// Makes a system call that waits in the kernel with another mask. It is a cancellation point. Only for fibers, whose masks are ours.
long signal_masked_call(uint64_t mask, long number, long a, long b, long c, long d, long e, long f = 0);
// Returns true if there is a signal that will be handled once Busy ends. If there is none, clears kInterruptSafePoint. Called under Busy.
bool signal_is_pending(FiberRecord* me);

// Raises SIGPIPE as the kernel does for a write of the caller.
void signal_raise_pipe();
// Called when a system call of the caller has just ended with EPIPE. If the caller blocks SIGPIPE, that signal is pending on this kernel
// thread. This makes it pending for the fiber.
void signal_take_pipe();

// Sends a signal to one thread. `info` may be null, and the signal is then as from pthread_kill. Returns 0 or an errno value.
int signal_send(FiberRecord* to, int sig, const siginfo_t* info);
// Sends a signal to the thread with the tid that gettid() gives.
int thread_kill_tid(int tgid, int tid, int sig, const siginfo_t* info);
// Does rt_sigprocmask for the calling thread, as pthread_sigmask does. Returns 0 or an errno value.
int signal_mask_raw(int how, const uint64_t* set, uint64_t* old);
// Returns what sigpending() shows for a fiber.
uint64_t signal_pending_set(FiberRecord* me);

// Returns true in the child of a vfork that has not exec'ed. Our memory is then the parent's, and must not be changed.
bool in_vfork_child();

}  // namespace fiberthread
