// SPDX-License-Identifier: MIT
#include "shim/fork.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <unistd.h>

#include "sched/glibc/thread_list.h"
#include "sched/life/fork.h"
#include "sched/memory/block.h"
#include "sched/poller.h"
#include "sched/scheduler.h"
#include "shim/export.h"
#include "shim/result.h"
#include "shim/real.h"
#include "shim/signal.h"
#include "shim/thread.h"
#include "shim/unwinder.h"

extern "C" int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(), void* object);

namespace fiberthread {
namespace {

thread_local constinit uint64_t mask_before __attribute__((tls_model("initial-exec"))) = 0;

// Between prepare() and in_parent() or in_child() the fiber is Busy, and stays on its kernel thread. The only lock that it holds is the one
// of libc's stack lists. Other threads must sleep for that lock and not spin, because libc then waits for malloc's lock, whose owner may
// wait for a slot. All locks of ours are made anew in the child. Signals are blocked meanwhile. A signal recorded in the child before its
// reset would be taken for the parent's.
void prepare() {
  unwinder_before_fork();
  self();
  tls_busy = tls_busy + 1;
  sched_block_signals(&mask_before);
  tcb_lock_for_fork();
}

void in_parent() {
  tcb_unlock_after_fork();
  unwinder_after_fork_in_parent();
  sched_restore_signals(mask_before);
  {
    Busy leave;
    tls_busy = tls_busy - 1;
  }
}

void in_child() {
  FiberRecord* me = tls_current;
  tcb_unlock_after_fork();
  unwinder_after_fork_in_child();
  bool was_fiber = !me->run.kernel;
  uint64_t mask = me->run.sigmask;
  sched_reset_after_fork(me);
  if (tls_vforked) {  // the child of a vfork has forked, so this process has its memory to itself
    tls_vforked = 0;
    tls_busy = tls_busy - 1;
  }
  me->identity.id = static_cast<uint32_t>(raw_syscall(SYS_getpid));
  me->run.sigmask = mask;
  {
    Busy leave;
    tls_busy = tls_busy - 1;
  }
  if (was_fiber) sched_apply_mask();
  else sched_restore_signals(mask_before);
}

}  // namespace

long fork_by(long nr, long a, long b, long c, long d, long e) {
  prepare();
  long r = program_syscall(nr, a, b, c, d, e);
  if (r == 0) in_child();
  else in_parent();
  return r;
}

// Registers with libc's own function, which pthread_atfork() calls. A program's own pthread_atfork (Firefox has one) would run our handlers
// before it calls clone(), which runs them anyway.
void fork_init() { REAL(__register_atfork)(prepare, in_parent, in_child, nullptr); }

}  // namespace fiberthread

using namespace fiberthread;

// The call itself is in sched/arch/<cpu>/posix/vfork.S, since the child returns first and the parent then returns from the same frame.
// Until then the parent's kernel thread sleeps uninterruptibly and runs nothing, so its slot goes to a worker that waits for one. The fiber
// is Busy, so that the child runs nothing that was meant for the parent.
extern "C" __attribute__((visibility("hidden"), used)) void fiberthread_vfork_begin() {
  FiberRecord* me = tls_current;
  poll_memory_shared();
  if (!sched_started() || !me || me->run.kernel) return;
  if (tls_vforked == 0) {
    tls_busy = tls_busy + 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    Blocking::begin();
  }
  tls_vforked = tls_vforked + 1;
}

extern "C" __attribute__((visibility("hidden"), used)) pid_t fiberthread_vfork_end(long result) {
  if (tls_vforked && --tls_vforked == 0) {
    {
      Busy leave;
      tls_busy = tls_busy - 1;
    }
    Blocking::end();
  }
  return static_cast<pid_t>(with_errno(result));
}

// Makes a process. To the library this is a fork whose child begins in a function.
FIBERTHREAD_EXPORT int clone(int (*function)(void*), void* stack, int flags, void* argument, ...) noexcept {
  va_list list;
  va_start(list, argument);
  auto* parent_tid = va_arg(list, pid_t*);
  void* tls = va_arg(list, void*);
  auto* child_tid = va_arg(list, pid_t*);
  va_end(list);
  if (flags & CLONE_VM) poll_memory_shared();
  if (flags & (CLONE_VM | CLONE_SETTLS) || !function || !stack || (sched_started() && in_vfork_child()))
    return REAL(clone)(function, stack, flags, argument, parent_tid, tls, child_tid);
  struct Start {
    int (*function)(void*);
    void* argument;
  } start{function, argument};
  prepare();
  int pid = REAL(clone)(
      [](void* p) {
        Start s = *static_cast<Start*>(p);
        in_child();
        int status = s.function(s.argument);
        // libc would end the kernel thread only, and the library may have made others.
        if (sched_count_end()) raw_syscall(SYS_exit_group, status);
        thread_exit_raw();
        return 0;
      },
      stack, flags, &start, parent_tid, tls, child_tid);
  in_parent();
  return pid;
}

// Runs our handlers only. _Fork skips those of pthread_atfork, and ours with them.
FIBERTHREAD_EXPORT pid_t _Fork() noexcept {
  prepare();
  pid_t pid = REAL(_Fork)();
  if (pid == 0) in_child();
  else in_parent();
  return pid;
}

// For preload/explore/server.cpp. The child has the same scheduler as its parent, which has no other thread. By fork() it would start a new one.
extern "C" [[gnu::visibility("default")]] pid_t fiberthread_explore_fork() {
  pid_t pid = REAL(_Fork)();
  if (pid == 0) {
    signal_new_process();
    sched_copied();
  }
  return pid;
}
