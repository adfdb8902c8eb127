// SPDX-License-Identifier: MIT
// System calls by number: threads, how others see them, how they end, and processes that they fork.
#include <linux/futex.h>
#include <unistd.h>

#include "sched/glibc/tcb.h"
#include "sched/life/fork.h"
#include "sched/worker.h"
#include "shim/fork.h"
#include "shim/own_thread.h"
#include "shim/shared_use.h"
#include "shim/syscall_parts.h"
#include "shim/thread.h"
#include "shim/thread_names.h"

namespace fiberthread {

FiberRecord* scheduled_fiber(int tid) {
  FiberRecord* f = fiber_of_tid(tid);
  return f && !f->run.kernel ? f : nullptr;
}

namespace {

// The word that the thread named by set_tid_address. The kernel is not told: it would clear the word when the worker ends. A thread that has
// named none, or the one that it was told first, has the number in its TCB as its word. That one is not cleared.
thread_local constinit bool has_named = false;
thread_local constinit uint32_t* named_word = nullptr;

FIBERTHREAD_IN_FORK_CHILD(EmbeddersThreads, named_word, [](FiberRecord*) { has_named = false; })

}  // namespace

uint32_t* tid_word() { return has_named ? named_word : tcb_tid(self()->memory.tcb); }

void clear_named_word() {
  uint32_t* word = named_word;
  if (!has_named || !word) return;
  has_named = false;
  uint32_t zero = 0;
  copy_user(word, &zero);
  raw_syscall(SYS_futex, arg(word), FUTEX_WAKE, 1);  // as the kernel does, for threads that wait as on a shared one
}

namespace calls {

long gettid() { return self()->identity.id; }

long set_tid_address(uint32_t* word) {
  named_word = word;
  has_named = word != tcb_tid(self()->memory.tcb);
  return self()->identity.id;
}

long set_robust_list(void* list, size_t size) {
  if (size != kRobustListSize) return -EINVAL;
  own_robust_list(self()) = list;
  return 0;
}

long get_robust_list(long tid, void** user_list, size_t* user_size) {
  FiberRecord* me = self();
  if (tid != 0 && tid != me->identity.id) return -ESRCH;
  void* list = own_robust_list(me);
  if (!list) list = tcb_robust_list(me->memory.tcb);
  size_t size = kRobustListSize;
  return copy_user(user_size, &size) && copy_user(user_list, &list) ? 0 : -EFAULT;
}

// Refused, since the area would belong to the worker.
long rseq() { return -ENOSYS; }

long exit(long status) {
  self()->identity.result = nullptr;
  if (sched_count_end()) raw_syscall(SYS_exit_group, status);
  thread_exit_raw();
}

#ifdef SYS_fork
// vfork too, since its child cannot share a stack with a function that has returned.
long fork() { return fork_by(SYS_fork, 0, 0, 0, 0, 0); }
#endif

long clone(long flags, long b, long c, long d, long e) {
  constexpr long kVm = 0x100;
  if (flags & kVm) return -ENOSYS;  // it would be a thread, or half a process, on memory that the library manages
  return fork_by(SYS_clone, flags, b, c, d, e);
}

// Callers fall back to clone.
long clone3() { return -ENOSYS; }

#ifdef SYS_arch_prctl
long arch_prctl(long code, long address) {
  constexpr long kSetGs = 0x1001, kSetFs = 0x1002, kSetCpuid = 0x1012;  // ARCH_…
  if (code == kSetFs) return -EPERM;                                    // libc would fail at once, and the next switch would lose it
  if ((code == kSetGs && !fiberthread_fsgsbase) || code == kSetCpuid)   // else a switch keeps the base of GS
    if (int error = own_kernel_thread()) return -error;
  return program_syscall(SYS_arch_prctl, code, address);
}
#endif

long sched_getaffinity(int tid, size_t size, cpu_set_t* set) {
  // The kernel's call tells how much it wrote.
  long n = program_syscall(SYS_sched_getaffinity, 0, static_cast<long>(size), arg(set));
  if (n < 0) return n;
  long r = kernel_result(::sched_getaffinity(tid, size, set));
  return r < 0 ? r : n;
}

long sched_rr_get_interval(int tid, timespec* interval) {
  timespec t;
  if (long r = kernel_result(::sched_rr_get_interval(tid, &t))) return r;
  return copy_user(interval, &t) ? 0 : -EFAULT;
}

long getpriority(int which, id_t who) {
  errno = 0;
  if (int p = ::getpriority(static_cast<__priority_which_t>(which), who); p != -1 || errno == 0) return 20 - p;  // the form of the kernel
  return -errno;
}

namespace {

constexpr long kOneThread = 1;  // IOPRIO_WHO_PROCESS, which means one thread

// Returns the fiber that an ioprio call names. Null: only the kernel knows the target.
FiberRecord* fiber_of_ioprio(long which, long who) {
  if (which != kOneThread) return nullptr;
  return who ? scheduled_fiber(static_cast<int>(who)) : self();
}

long ioprio_of(const FiberRecord* f, long nr, long priority) {
  Busy busy;
  return program_syscall(nr, kOneThread, f != self() ? sched_own_tid(f) : 0, priority);
}

}  // namespace

long ioprio_get(long which, long who, long c) {
  FiberRecord* of = fiber_of_ioprio(which, who);
  return of ? ioprio_of(of, SYS_ioprio_get, c) : plain_call(SYS_ioprio_get, which, who, c, 0, 0, 0);
}

long ioprio_set(long which, long who, long priority) {
  FiberRecord* of = fiber_of_ioprio(which, who);
  if (!of) return plain_call(SYS_ioprio_set, which, who, priority, 0, 0, 0);
  if (int error = of == self() ? own_kernel_thread() : sched_bind(of)) return -error;
  return ioprio_of(of, SYS_ioprio_set, priority);
}

}  // namespace calls
}  // namespace fiberthread
