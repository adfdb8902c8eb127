// SPDX-License-Identifier: MIT
// Calls of which the kernel knows no fiber: those about a process, which a thread's id may name too, and those that count, or notify, one
// thread. A thread that is counted or notified gets a kernel thread of its own.
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "sched/scheduler.h"
#include "sched/worker.h"
#include "shim/export.h"
#include "shim/own_thread.h"
#include "shim/process.h"
#include "shim/signal_parts.h"
#include "shim/syscall_parts.h"

// Declared as the headers of libcap and of libc 2.36 declare them.
extern "C" int capget(void* header, void* data) noexcept;
extern "C" int capset(void* header, const void* data) noexcept;
extern "C" int pidfd_open(pid_t pid, unsigned flags) noexcept;

namespace fiberthread {
namespace {

bool in_scheduler() { return sched_started() && !in_vfork_child(); }
bool called_by_fiber() { return tls_current && in_scheduler() && !tls_current->run.kernel; }

// Returns the fiber with this tid, if there is one that the kernel does not know by it.
FiberRecord* named_fiber(int tid) { return tid > 0 && in_scheduler() ? scheduled_fiber(tid) : nullptr; }

// Gives the fiber a kernel thread of its own, whose signals are the fiber's. Returns the tid of that, which may have ended with the fiber, or
// a negative errno value.
long kernel_thread_for(FiberRecord* f) {
  if (int e = sched_bind(f)) return -e;
  int own = sched_own_tid(f);
  if (!own) return -ESRCH;  // the fiber has ended since
  sched_take_signals(f);
  return own;
}

}  // namespace

pid_t process_of(pid_t id) { return named_fiber(id) ? getpid() : id; }

namespace calls {

long capget(void* user_header, void* data) {
  __user_cap_header_struct header;
  if (!copy_user(&header, static_cast<__user_cap_header_struct*>(user_header))) return -EFAULT;
  FiberRecord* f = named_fiber(header.pid);
  if (!f) return plain_call(SYS_capget, arg(user_header), arg(data), 0, 0, 0, 0);
  // A fiber without a kernel thread of its own has the capabilities of the process's first threads, as sysmon has.
  int own = sched_own_tid(f);
  header.pid = f == self() ? 0 : own ? own : sysmon_tid();
  long r = raw_syscall(SYS_capget, arg(&header), arg(data));
  // The kernel tells here which version it has.
  return copy_user(&static_cast<__user_cap_header_struct*>(user_header)->version, &header.version) ? r : -EFAULT;
}

long capset(void* user_header, const void* data) {
  __user_cap_header_struct header;
  if (!copy_user(&header, static_cast<__user_cap_header_struct*>(user_header))) return -EFAULT;
  if (int e = own_kernel_thread()) return -e;
  if (named_fiber(header.pid) != self()) return plain_call(SYS_capset, arg(user_header), arg(data), 0, 0, 0, 0);
  header.pid = 0;
  return plain_call(SYS_capset, arg(&header), arg(data), 0, 0, 0, 0);
}

long pidfd_open(long pid, long flags) {
  FiberRecord* f = named_fiber(static_cast<int>(pid));
  constexpr long kOneThread = O_EXCL;  // PIDFD_THREAD
  if (!f || f == main_fiber) return plain_call(SYS_pidfd_open, pid, flags, 0, 0, 0, 0);
  // The kernel says what it says of any thread that is not a process's first.
  sysmon_begin();
  if (!(flags & kOneThread)) return plain_call(SYS_pidfd_open, sysmon_tid(), flags, 0, 0, 0, 0);
  // A kernel before 6.9 refuses this for any thread.
  long fd = plain_call(SYS_pidfd_open, sysmon_tid(), flags, 0, 0, 0, 0);
  if (fd < 0) return fd;
  raw_syscall(SYS_close, fd);
  long tid = kernel_thread_for(f);
  return tid < 0 ? tid : plain_call(SYS_pidfd_open, tid, flags, 0, 0, 0, 0);
}

long setpgid(long pid, long group) {
  FiberRecord* f = named_fiber(static_cast<int>(pid));
  if (f && f != main_fiber) return -EINVAL;  // as the kernel says of any thread that is not a process's first
  return program_syscall(SYS_setpgid, pid, group);
}

long perf_event_open(void* attributes, long pid, long cpu, long group, long flags) {
  FiberRecord* f = pid == 0 ? self() : named_fiber(static_cast<int>(pid));
  if (f) {
    long tid = kernel_thread_for(f);
    if (tid < 0) return tid;
    pid = f == self() ? 0 : tid;
  }
  return plain_call(SYS_perf_event_open, arg(attributes), pid, cpu, group, flags, 0);
}

}  // namespace calls

int set_owner(int fd, const f_owner_ex* user_owner) {
  f_owner_ex owner;
  FiberRecord* f = copy_user(&owner, user_owner) && owner.type == F_OWNER_TID ? named_fiber(owner.pid) : nullptr;
  if (!f) return REAL(fcntl)(fd, F_SETOWN_EX, user_owner);
  long tid = kernel_thread_for(f);
  if (tid < 0) return static_cast<int>(with_errno(tid));
  owner.pid = static_cast<int>(tid);
  signals::state_of(f).owns_files.store(true, std::memory_order_relaxed);  // seen by the handler: the call orders it
  return REAL(fcntl)(fd, F_SETOWN_EX, &owner);
}

int get_owner(int fd, f_owner_ex* user_owner) {
  int r = REAL(fcntl)(fd, F_GETOWN_EX, user_owner);
  if (r != 0 || user_owner->type != F_OWNER_TID || !in_scheduler()) return r;
  for (Worker* w = all_workers(); w; w = w->thread.all_next)
    if (FiberRecord* f = w->bond.fiber; f && w->thread.tid == user_owner->pid) user_owner->pid = static_cast<int>(f->identity.id);
  return r;
}

// A file's own signal (F_SETSIG) tells its event, and SIGIO does not.
bool sent_to_owner(FiberRecord* me, const siginfo_t& info) {
  bool of_file = info.si_signo == SIGIO && info.si_code == SI_KERNEL;
  of_file |= info.si_signo != SIGCHLD && info.si_code >= POLL_IN && info.si_code <= POLL_HUP;
  return of_file && signals::state_of(me).owns_files.load(std::memory_order_relaxed);
}

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT pid_t getpgid(pid_t pid) noexcept { return REAL(getpgid)(process_of(pid)); }
FIBERTHREAD_ALIAS(__getpgid, getpgid);
FIBERTHREAD_EXPORT int setpgid(pid_t pid, pid_t group) noexcept { return static_cast<int>(with_errno(calls::setpgid(pid, group))); }
FIBERTHREAD_ALIAS(__setpgid, setpgid);
FIBERTHREAD_EXPORT pid_t getsid(pid_t pid) noexcept { return REAL(getsid)(process_of(pid)); }

FIBERTHREAD_EXPORT int prlimit(pid_t pid, __rlimit_resource resource, const rlimit* limit, rlimit* old) noexcept {
  return REAL(prlimit)(process_of(pid), resource, limit, old);
}
FIBERTHREAD_ALIAS(prlimit64, prlimit);

FIBERTHREAD_EXPORT ssize_t process_vm_readv(pid_t pid, const iovec* here, unsigned long n, const iovec* there, unsigned long m,
                                            unsigned long flags) noexcept {
  return REAL(process_vm_readv)(process_of(pid), here, n, there, m, flags);
}
FIBERTHREAD_EXPORT ssize_t process_vm_writev(pid_t pid, const iovec* here, unsigned long n, const iovec* there, unsigned long m,
                                             unsigned long flags) noexcept {
  return REAL(process_vm_writev)(process_of(pid), here, n, there, m, flags);
}

FIBERTHREAD_EXPORT int capget(void* header, void* data) noexcept {
  if (!called_by_fiber()) return REAL(capget)(header, data);
  return static_cast<int>(with_errno(calls::capget(header, data)));
}
FIBERTHREAD_EXPORT int capset(void* header, const void* data) noexcept {
  if (!called_by_fiber()) return REAL(capset)(header, data);
  return static_cast<int>(with_errno(calls::capset(header, data)));
}

FIBERTHREAD_EXPORT int pidfd_open(pid_t pid, unsigned flags) noexcept {
  return static_cast<int>(with_errno(called_by_fiber() ? calls::pidfd_open(pid, flags) : raw_syscall(SYS_pidfd_open, pid, flags)));
}
