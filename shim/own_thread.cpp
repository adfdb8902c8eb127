// SPDX-License-Identifier: MIT
// Calls that change what the kernel keeps for the calling thread alone, and passes on to the threads which that one clones. These are
// namespaces, file-system ids, capabilities, filters, the tracer, rights by protection keys. The fiber gets a kernel thread of its own
// first, and so do the fibers that it makes.
#include "shim/own_thread.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
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
#include "shim/thread.h"
#include "shim/thread_names.h"
#include "shim/user_memory.h"

namespace fiberthread {

namespace {

constexpr long kDefaultPolicy = 0;     // MPOL_DEFAULT
constexpr long kLsmSetSelfAttr = 460;  // lsm_set_self_attr, of Linux 6.8

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

namespace {

// What get_mempolicy() says of the threads of the pool.
enum class PoolPolicy { Unknown, Default, Other };
std::atomic<PoolPolicy> pool_policy{PoolPolicy::Unknown};

// Called on a thread of the pool. A filter may not allow the call, and then a policy is for good.
void learn_pool_policy() {
  int mode = 0;
  if (filtered.load(std::memory_order_relaxed) || raw_syscall(SYS_get_mempolicy, arg(&mode), 0, 0, 0, 0) != 0) return;
  pool_policy.store(mode == kDefaultPolicy ? PoolPolicy::Default : PoolPolicy::Other, std::memory_order_relaxed);
}

}  // namespace

OwnThreadForCall::OwnThreadForCall() : me_(calling_fiber()) {
  if (!me_) return;
  if (pool_policy.load(std::memory_order_relaxed) == PoolPolicy::Unknown && !me_->run.bound.load(std::memory_order_relaxed))
    learn_pool_policy();
  outermost_ = !(sched_bond_of(me_) & kForCall);
  error_ = sched_bind(me_, kForCall);
}

OwnThreadForCall::~OwnThreadForCall() {
  if (me_ && outermost_ && !error_) sched_unbind(kForCall);
}

void OwnThreadForCall::succeeded(long number, long a) {
  if (!me_) return;
  if (number != SYS_set_mempolicy || pool_policy.load(std::memory_order_relaxed) != PoolPolicy::Default) sched_add_reason(me_, kForGood);
  else if (a != kDefaultPolicy) sched_add_reason(me_, kForMemoryPolicy);
  else sched_drop_reason(me_, kForMemoryPolicy);  // no reason may be left when the call is over
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
    case SYS_setgroups:
    case SYS_pkey_alloc: return true;  // it sets the thread's rights to the key
    case kLsmSetSelfAttr: return true;
    case SYS_seccomp: return !(b & kAllThreads);
#ifdef SYS_landlock_restrict_self
    case SYS_landlock_restrict_self: return true;
#endif
    default: return false;
  }
}

namespace {

// As on_own_thread(), for a function of libc, which tells of an error by -1 and errno.
template <class Call>
int own_thread_with_errno(long number, long a, Call call) {
  return static_cast<int>(with_errno(on_own_thread(number, a, [&] { return kernel_result(call()); })));
}

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
    case PR_SCHED_CORE:
    case PR_SET_IO_FLUSHER:
    case PR_PAC_RESET_KEYS:
    case PR_PAC_SET_ENABLED_KEYS:
    case PR_SET_TAGGED_ADDR_CTRL:
    case PR_SVE_SET_VL:
#ifdef PR_SME_SET_VL
    case PR_SME_SET_VL:
#endif
      return true;
    default: return false;
  }
}

}  // namespace

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int unshare(int flags) noexcept {
  return own_thread_with_errno(SYS_unshare, flags, [&] { return REAL(unshare)(flags); });
}
FIBERTHREAD_EXPORT int setns(int fd, int type) noexcept {
  return own_thread_with_errno(SYS_setns, fd, [&] { return REAL(setns)(fd, type); });
}
FIBERTHREAD_EXPORT int pkey_alloc(unsigned flags, unsigned rights) noexcept {
  return static_cast<int>(syscall(SYS_pkey_alloc, flags, rights));
}
// This writes a register of the processor.
FIBERTHREAD_EXPORT int pkey_set(int key, unsigned rights) noexcept {
  if (int e = own_kernel_thread()) return static_cast<int>(with_errno(-e));
  return REAL(pkey_set)(key, rights);
}
// These two do not tell whether they have failed.
FIBERTHREAD_EXPORT int setfsuid(uid_t u) noexcept {
  if (int e = own_kernel_thread()) return static_cast<int>(with_errno(-e));
  return REAL(setfsuid)(u);
}
FIBERTHREAD_EXPORT int setfsgid(gid_t g) noexcept {
  if (int e = own_kernel_thread()) return static_cast<int>(with_errno(-e));
  return REAL(setfsgid)(g);
}
FIBERTHREAD_EXPORT int personality(unsigned long persona) noexcept {
  constexpr unsigned long kAsk = 0xffffffff;
  auto call = [&] { return REAL(personality)(persona); };
  return persona == kAsk ? call() : own_thread_with_errno(SYS_personality, static_cast<long>(persona), call);
}
// ptrace() takes a variable number of arguments. Four are passed, as if it were declared so. -1 may be what it has read.
FIBERTHREAD_EXPORT long four_of_ptrace(__ptrace_request request, long pid, void* address, void* data) noexcept asm("ptrace");
long four_of_ptrace(__ptrace_request request, long pid, void* address, void* data) noexcept {
  if (int e = own_kernel_thread()) return with_errno(-e);
  return REAL(ptrace)(request, pid, address, data);
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
  return own_thread_with_errno(SYS_ioperm, static_cast<long>(from), [&] { return REAL(ioperm)(from, n, on); });
}
FIBERTHREAD_EXPORT int iopl(int level) noexcept {
  return own_thread_with_errno(SYS_iopl, level, [&] { return REAL(iopl)(level); });
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
  // The kernel's word is the worker's. A program that writes to it, or names it for its thread, would seem to end the worker.
  if (option == PR_GET_TID_ADDRESS && calling_fiber()) {
    uint32_t* word = nullptr;
    int r = REAL(prctl)(option, &word, b, c, d);  // some kernels do not tell
    if (r != 0) return r;
    word = tid_word();
    return copy_user(reinterpret_cast<uint32_t**>(a), &word) ? 0 : static_cast<int>(with_errno(-EFAULT));
  }
  if (option == PR_SET_SECCOMP) {
    bool has_program = a == SECCOMP_MODE_FILTER;
    auto call = [&](long program) { return kernel_result(REAL(prctl)(option, a, has_program ? program : b, c, d)); };
    return static_cast<int>(with_errno(set_filter(SYS_prctl, option, 0, has_program ? reinterpret_cast<void*>(b) : nullptr, call)));
  }
  auto call = [&] { return REAL(prctl)(option, a, b, c, d); };
  return prctl_is_of_thread(option) ? own_thread_with_errno(SYS_prctl, option, call) : call();
}
