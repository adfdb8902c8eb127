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

extern "C" int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(), void* object);

namespace fiberthread {
namespace {

thread_local constinit uint64_t mask_before __attribute__((tls_model("initial-exec"))) = 0;

// Between prepare and parent or child the fiber is Busy: it stays on its kernel thread. Of locks it has only that of libc's stack
// lists, for which others sleep: libc goes on to wait for malloc's, whose owner may wait for a slot, so nobody must spin meanwhile.
// All locks of ours are made anew in the child. Signals wait meanwhile: what was recorded in the
// child before it is itself would be taken for the parent's.
void prepare() {
  self();
  tls_busy = tls_busy + 1;
  sched_block_signals(&mask_before);
  tcb_lock_for_fork();
}

void in_parent() {
  tcb_unlock_after_fork();
  sched_restore_signals(mask_before);
  {
    Busy leave;
    tls_busy = tls_busy - 1;
  }
}

void in_child() {
  FiberRecord* me = tls_current;
  tcb_unlock_after_fork();
  bool was_fiber = !me->run.kernel;
  uint64_t mask = me->run.sigmask;
  sched_reset_after_fork(me);
  if (tls_vforked) {  // the child of a vfork has forked: this one has its memory to itself
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

// With libc's own, which pthread_atfork() calls: a program's (Firefox') would run ours before it calls clone(), where they run anyhow.
void fork_init() { REAL(__register_atfork)(prepare, in_parent, in_child, nullptr); }

}  // namespace fiberthread

using namespace fiberthread;

// vfork proper is in sched/arch/<cpu>/posix/vfork.S, as its child returns first and the parent then returns from the same frame. Until
// that, the parent's kernel thread sleeps uninterruptibly and stands for nobody: its slot goes to who waits for one. Busy, because the child
// shall run nothing that was meant for the parent.
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

// A process made this way is a fork for us, with a function to begin in.
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
        // libc would end the kernel thread, which with us is not the only one.
        if (sched_count_end()) raw_syscall(SYS_exit_group, status);
        thread_exit_raw();
        return 0;
      },
      stack, flags, &start, parent_tid, tls, child_tid);
  in_parent();
  return pid;
}

// Without the handlers of pthread_atfork, ours are needed all the same.
FIBERTHREAD_EXPORT pid_t _Fork() noexcept {
  prepare();
  pid_t pid = REAL(_Fork)();
  if (pid == 0) in_child();
  else in_parent();
  return pid;
}
