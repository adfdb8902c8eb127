// SPDX-License-Identifier: MIT
// Calls that change what the kernel keeps for the calling thread alone, and passes on to the threads which that one clones. These are
// namespaces, file-system ids, capabilities, filters, the tracer, the base of GS. The fiber gets a kernel thread of its own first, and so
// do the fibers that it makes.
#include "shim/own_thread.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sched/scheduler.h"
#include "shim/export.h"
#include "shim/filter.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/signal.h"
#include "shim/thread_names.h"
#include "shim/user_memory.h"

namespace fiberthread {

namespace {

// The calling fiber. Null: the caller is a kernel thread.
FiberRecord* calling_fiber() {
  FiberRecord* me = tls_current;
  return sched_started() && me && !me->run.kernel && !in_vfork_child() ? me : nullptr;
}

}  // namespace

int own_kernel_thread() {
  FiberRecord* me = calling_fiber();
  return me ? sched_bind(me) : 0;
}

bool call_is_of_thread(long number, long b) {
  constexpr long kAllThreads = 1;  // SECCOMP_FILTER_FLAG_TSYNC
  switch (number) {
    case SYS_unshare:
    case SYS_setns:
    case SYS_personality:
    case SYS_ptrace:
    case SYS_set_mempolicy:
    // A thread can have a keyring of its own, and can change which session keyring it has.
    case SYS_keyctl:
    case SYS_add_key:
    case SYS_request_key:
#if defined(__x86_64__)
    case SYS_ioperm:
    case SYS_iopl:
#endif
    // By number, these calls change the thread. libc's functions of these names change the process.
    case SYS_setfsuid:
    case SYS_setfsgid:
    case SYS_setuid:
    case SYS_setgid:
    case SYS_setreuid:
    case SYS_setregid:
    case SYS_setresuid:
    case SYS_setresgid:
    case SYS_setgroups: return true;
    case SYS_seccomp: return !(b & kAllThreads);
#ifdef SYS_landlock_restrict_self
    case SYS_landlock_restrict_self: return true;
#endif
    default: return false;
  }
}

namespace {

bool prctl_is_of_thread(int option) {
  switch (option) {
    case PR_SET_PDEATHSIG:
    case PR_SET_KEEPCAPS:
    case PR_SET_TIMING:
    case PR_SET_SECCOMP:
    case PR_CAPBSET_DROP:
    case PR_SET_TSC:
    case PR_SET_SECUREBITS:
    case PR_SET_TIMERSLACK:
    case PR_MCE_KILL:
    case PR_SET_NO_NEW_PRIVS:
    case PR_CAP_AMBIENT:
    case PR_SET_SPECULATION_CTRL:
    case PR_SET_SYSCALL_USER_DISPATCH:
    case PR_SVE_SET_VL: return true;
    default: return false;
  }
}

template <class Call>
auto on_own_thread(Call call) -> decltype(call()) {
  if (int e = own_kernel_thread()) {
    errno = e;
    return -1;
  }
  return call();
}

}  // namespace

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int unshare(int flags) noexcept {
  return on_own_thread([&] { return REAL(unshare)(flags); });
}
FIBERTHREAD_EXPORT int setns(int fd, int type) noexcept {
  return on_own_thread([&] { return REAL(setns)(fd, type); });
}
FIBERTHREAD_EXPORT int setfsuid(uid_t u) noexcept {
  return on_own_thread([&] { return REAL(setfsuid)(u); });
}
FIBERTHREAD_EXPORT int setfsgid(gid_t g) noexcept {
  return on_own_thread([&] { return REAL(setfsgid)(g); });
}
FIBERTHREAD_EXPORT int personality(unsigned long persona) noexcept {
  constexpr unsigned long kAsk = 0xffffffff;
  return persona == kAsk ? REAL(personality)(persona) : on_own_thread([&] { return REAL(personality)(persona); });
}
// ptrace() takes a variable number of arguments. Four are passed, as if it were declared so.
FIBERTHREAD_EXPORT long four_of_ptrace(__ptrace_request request, long pid, void* address, void* data) noexcept asm("ptrace");
long four_of_ptrace(__ptrace_request request, long pid, void* address, void* data) noexcept {
  return on_own_thread([&] { return REAL(ptrace)(request, pid, address, data); });
}

#if defined(__x86_64__)
// No header declares these.
extern "C" int arch_prctl(int, unsigned long) noexcept;
extern "C" int ioperm(unsigned long, unsigned long, int) noexcept;
extern "C" int iopl(int) noexcept;

FIBERTHREAD_EXPORT int arch_prctl(int code, unsigned long address) noexcept {
  return static_cast<int>(syscall(SYS_arch_prctl, code, address));
}
FIBERTHREAD_EXPORT int ioperm(unsigned long from, unsigned long n, int on) noexcept {
  return on_own_thread([&] { return REAL(ioperm)(from, n, on); });
}
FIBERTHREAD_EXPORT int iopl(int level) noexcept {
  return on_own_thread([&] { return REAL(iopl)(level); });
}
#endif

FIBERTHREAD_EXPORT int prctl(int option, ...) noexcept {
  va_list list;
  va_start(list, option);
  unsigned long a = va_arg(list, unsigned long), b = va_arg(list, unsigned long);
  unsigned long c = va_arg(list, unsigned long), d = va_arg(list, unsigned long);
  va_end(list);
  if (option == PR_SET_NAME || option == PR_GET_NAME) {
    if (FiberRecord* me = a ? calling_fiber() : nullptr) {
      struct {
        char text[16];
      } name = {};
      if (option == PR_SET_NAME) {
        if (!copy_user_string(name.text, reinterpret_cast<const char*>(a), sizeof name.text - 1))
          return static_cast<int>(with_errno(-EFAULT));
        set_name(me, name.text);
        return 0;
      }
      name_of(me, name.text);
      return copy_user(reinterpret_cast<decltype(name)*>(a), &name) ? 0 : static_cast<int>(with_errno(-EFAULT));
    }
  }
  if (prctl_is_of_thread(option))
    if (int e = own_kernel_thread()) return static_cast<int>(with_errno(-e));
  if (option == PR_SET_SECCOMP) {
    filtered.store(true, std::memory_order_relaxed);
    if (a == SECCOMP_MODE_FILTER) {
      FilterForKernel filter(reinterpret_cast<void*>(b));
      return REAL(prctl)(option, a, reinterpret_cast<unsigned long>(filter.program()), c, d);
    }
  }
  return REAL(prctl)(option, a, b, c, d);
}
