// SPDX-License-Identifier: MIT
// Policies, priorities, affinity and nice values of single threads. A fiber has the process's. A call that asks for others makes the fiber
// a bound one, and its kernel thread gets them. Before the first thread is made, these calls go to the kernel unchanged. The scheduler is
// then made for the CPUs that they leave.
#include "shim/scheduling.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/capability.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sched/glibc/go.h"
#include "sched/memory/block.h"
#include "sched/worker.h"
#include "shim/clock.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/signal.h"
#include "shim/thread.h"
#include "shim/thread_names.h"
#include "shim/user_memory.h"

namespace fiberthread {
namespace {

std::atomic<int> concurrency{0};

// The library keeps the settings of fibers, and the kernel those of kernel threads.
bool is_ours(FiberRecord* f) { return f && sched_started() && !f->run.kernel; }

bool may_be_nice(int rtprio_needed) {
  rlimit limit;
  if (rtprio_needed && getrlimit(RLIMIT_RTPRIO, &limit) == 0 && limit.rlim_cur >= static_cast<rlim_t>(rtprio_needed)) return true;
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (raw_syscall(SYS_capget, arg(&header), arg(data)) != 0) return false;
  return data[0].effective >> CAP_SYS_NICE & 1;
}

// Returns the thread to ask the kernel about. A fiber that is not bound for good has the settings that the process had when its scheduler
// started.
int kernel_thread_of(FiberRecord* f) {
  if (f == tls_current && filtered.load(std::memory_order_relaxed)) return 0;  // a sandbox may let a thread ask about itself only
  int own = sched_own_tid(f);
  return own ? own : sysmon_tid();
}

// Whether the fiber's attributes set its policy explicitly. Only pthread_getattr_np asks for this.
bool& explicit_schedule(FiberRecord* f) { return shim_share<bool, 128, 144>(f); }

bool is_bound(FiberRecord* f) { return f->run.bound.load(std::memory_order_relaxed) != nullptr; }

// Makes `call`, a system call, for the fiber's own kernel thread. Returns its errno value, or 0.
template <class Call>
int errno_on_own_thread(FiberRecord* f, Call call) {
  if (int e = sched_bind(f)) return e;
  int tid = sched_own_tid(f);
  if (!tid) return ESRCH;  // the fiber has ended since
  long r = call(tid);
  return r < 0 ? static_cast<int>(-r) : 0;
}

int policy_of(FiberRecord* f) {
  long r = raw_syscall(SYS_sched_getscheduler, kernel_thread_of(f));
  return r == -ENOSYS ? SCHED_OTHER : static_cast<int>(r);  // a filter refuses the call
}
sched_param param_of(FiberRecord* f) {
  sched_param p{};
  raw_syscall(SYS_sched_getparam, kernel_thread_of(f), arg(&p));
  return p;
}

// Notes by which priority the fiber is woken before others.
void note_rank(FiberRecord* f, int policy, int priority) {
  constexpr int kDeadline = 6, kAboveAll = 100;
  policy &= ~SCHED_RESET_ON_FORK;
  bool real_time = policy == SCHED_FIFO || policy == SCHED_RR;
  f->wait.rank = static_cast<uint8_t>(policy == kDeadline ? kAboveAll : real_time ? priority : 0);
}

// For a fiber that has no kernel thread of its own yet, finds out first whether the request is refused or changes nothing. Otherwise a
// kernel thread would be spent on it.
int set_policy(FiberRecord* f, int policy, const sched_param* user_p) {
  if (!user_p || policy < 0) return EINVAL;
  sched_param copy, *p = &copy;
  if (!copy_user(p, user_p)) return EFAULT;
  int wanted = policy & ~SCHED_RESET_ON_FORK;
  int priority = p->sched_priority;
  auto set = [&](int tid) { return raw_syscall(SYS_sched_setscheduler, tid, policy, arg(p)); };
  if (int tid = sched_own_tid(f)) {
    long r = set(tid);
    if (r == 0) note_rank(f, policy, priority);
    return r < 0 ? static_cast<int>(-r) : 0;
  }
  bool real_time = wanted == SCHED_FIFO || wanted == SCHED_RR;
  auto bound = [&](long nr, long known) {
    long r = raw_syscall(nr, wanted);
    return r == -ENOSYS ? (real_time ? known : 0) : r;  // a filter refuses the call
  };
  long low = bound(SYS_sched_get_priority_min, 1), high = bound(SYS_sched_get_priority_max, 99);
  constexpr int kDeadline = 6;  // has more parameters than these calls have
  if (wanted == kDeadline || low < 0 || priority < low || priority > high) return EINVAL;
  int now = policy_of(f);
  if (policy == now && priority == param_of(f).sched_priority) return 0;
  bool lower = (now & ~SCHED_RESET_ON_FORK) == wanted && priority <= param_of(f).sched_priority;
  if (real_time && !lower && !may_be_nice(priority)) return EPERM;
  int e = errno_on_own_thread(f, set);
  scheduling_look_up_rank(f);
  return e;
}
int set_priority(FiberRecord* f, const sched_param* p) { return set_policy(f, policy_of(f), p); }

// The beginning of the kernel's struct sched_attr.
struct Attributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t rest[3];
};

int set_attributes(FiberRecord* f, const sched_attr* user_a, unsigned flags) {
  // Asks the kernel about a thread that does not exist. If it answers anything but ESRCH, it does not accept the request.
  long r = raw_syscall(SYS_sched_setattr, INT_MAX, arg(user_a), flags);
  if (r != -ESRCH) return static_cast<int>(-r);
  Attributes a;
  if (!copy_user(&a, reinterpret_cast<const Attributes*>(user_a))) return EFAULT;
  constexpr uint64_t kResets = 1, kKeepPolicy = 8, kKeepParameters = 16;
  int now = policy_of(f), kind = now & ~SCHED_RESET_ON_FORK;
  bool same = !(a.flags & ~(kResets | kKeepPolicy | kKeepParameters));
  if (!(a.flags & kKeepPolicy)) {
    bool resets = now & SCHED_RESET_ON_FORK, shall = a.flags & kResets;
    same &= a.policy == static_cast<uint32_t>(kind) && resets == shall;
  }
  if (!(a.flags & kKeepParameters)) {
    same &= static_cast<int>(a.priority) == param_of(f).sched_priority;
    if (kind == SCHED_OTHER || kind == SCHED_BATCH) same &= a.nice == getpriority(PRIO_PROCESS, f->identity.id);
  }
  if (same && !is_bound(f)) return 0;
  int e = errno_on_own_thread(f, [&](int tid) { return raw_syscall(SYS_sched_setattr, tid, arg(user_a), flags); });
  scheduling_look_up_rank(f);
  return e;
}

// Returns what the system call returns: bytes written, or a negative errno value.
long get_cpus(FiberRecord* f, size_t size, cpu_set_t* set) {
  if (f == tls_current) go_to_own_worker();  // it may have been bound just now, and shall be where the answer says
  int tid = kernel_thread_of(f);
  if (tid == sysmon_tid()) return process_cpus(set, static_cast<long>(size));
  return raw_syscall(SYS_sched_getaffinity, tid, static_cast<long>(size), arg(set));
}

// Returns whether the kernel would let a thread use more CPUs than `now` if it were given `wanted`, which has all of `now`. Only the kernel
// knows, so the calling kernel thread gets the set for a moment. Nothing else runs on it meanwhile.
bool may_widen(size_t size, const cpu_set_t* wanted, size_t now_size, const cpu_set_t* now) {
  Busy stay;
  cpu_set_t own, got;
  long n = raw_syscall(SYS_sched_getaffinity, 0, sizeof own, arg(&own));
  if (n < 0 || raw_syscall(SYS_sched_setaffinity, 0, static_cast<long>(size), arg(wanted)) < 0) return false;
  long m = raw_syscall(SYS_sched_getaffinity, 0, sizeof got, arg(&got));
  raw_syscall(SYS_sched_setaffinity, 0, n, arg(&own));
  return m > 0 && CPU_COUNT_S(static_cast<size_t>(m), &got) > CPU_COUNT_S(now_size, now);
}

int set_cpus(FiberRecord* f, size_t size, const cpu_set_t* user_set) {
  // No kernel has more CPUs than this set has bits. No program passes a size that is not a multiple of a word's.
  alignas(cpu_set_t) unsigned char copy[1024] = {};
  if (size > sizeof copy) size = sizeof copy;
  if (fiberthread_user_copy(copy, user_set, size & ~size_t{3}) != 0) return EFAULT;
  auto* set = reinterpret_cast<const cpu_set_t*>(copy);
  cpu_set_t now;
  long n = get_cpus(f, sizeof now, &now);
  if (n < 0) return static_cast<int>(-n);
  bool same = true, any = false, more = false;
  for (int i = 0; i < static_cast<int>(n) * 8; i++) {
    bool wanted = i < static_cast<int>(size) * 8 && CPU_ISSET_S(i, size, set);
    any |= wanted;
    bool has = CPU_ISSET_S(i, static_cast<size_t>(n), &now);
    same &= wanted || !has;
    more |= wanted && !has;
  }
  if (!any) return EINVAL;
  // A set of all CPUs that the fiber may have changes nothing.
  if (same && !is_bound(f) && !(more && may_widen(size, set, static_cast<size_t>(n), &now))) return 0;
  return errno_on_own_thread(f, [&](int tid) { return raw_syscall(SYS_sched_setaffinity, tid, static_cast<long>(size), arg(set)); });
}

// For calls that take a tid. Returns the fiber, or null where the kernel has to answer.
FiberRecord* target(int tid) {
  if (!sched_started() || in_vfork_child()) return nullptr;
  FiberRecord* f = fiber_of_tid(tid);
  return is_ours(f) && !f->join.done.load(std::memory_order_acquire) ? f : nullptr;
}

int fail(int e) {
  if (e == 0) return 0;
  errno = e;
  return -1;
}

// For calls that take a handle. Sets *e to ESRCH if the handle is stale.
FiberRecord* target(pthread_t t, int* e) {
  *e = 0;
  if (!sched_started()) return nullptr;
  FiberRecord* f = fiber_of(t);
  if (f ? f->join.done.load(std::memory_order_acquire) && is_ours(f) : stale_handle(t)) *e = ESRCH;
  return is_ours(f) ? f : nullptr;
}

// An attribute object says "bound" by a set of all possible CPUs and a mark far beyond them. So the object can be copied, and the set is
// harmless to libc.
struct BoundMark {
  unsigned char cpus[2048 - 8];
  char mark[8];
};
constexpr char kMark[8] = {'f', 'i', 'b', 'e', 'r', '-', '1', ':'};

// CPU_COUNT() looks at each single bit, which takes longer than a thread.
bool has_all(const cpu_set_t& set) {
  for (auto bits : set.__bits)
    if (~bits) return false;
  return true;
}

bool marked_bound(const pthread_attr_t* attr) {
  BoundMark m;
  return pthread_attr_getaffinity_np(attr, sizeof m, reinterpret_cast<cpu_set_t*>(&m)) == 0 && memcmp(m.mark, kMark, sizeof kMark) == 0;
}

}  // namespace

void scheduling_look_up_rank(FiberRecord* f) { note_rank(f, policy_of(f), param_of(f).sched_priority); }

int scheduling_at_birth(FiberRecord* f, FiberRecord* creator, const pthread_attr_t* attr) {
  // A bound creator's kernel thread may have settings that only the kernel knows. The new fiber gets a clone of that kernel thread, for the
  // same reasons. A cord's kernel thread does not belong to one fiber, so it does not count.
  bool clones = is_ours(creator) && is_bound(creator) && creator->run.worker->thread.tainted && !creator->run.worker->run.cord;
  if (clones || __builtin_expect(tcb_go_is_loaded(), 0)) {
    Reasons same = clones ? sched_bond_of(creator) & (kForGood | kForMemoryPolicy) : 0;
    if (int e = sched_bind(f, same ? same : kForGood)) return e;
  }
  if (__builtin_expect(creator->wait.rank != 0, 0)) scheduling_look_up_rank(f);
  if (!attr) return 0;
  int inherit;
  if (pthread_attr_getinheritsched(attr, &inherit) == 0 && inherit == PTHREAD_EXPLICIT_SCHED) {
    explicit_schedule(f) = true;
    int policy;
    sched_param p;
    pthread_attr_getschedpolicy(attr, &policy);
    pthread_attr_getschedparam(attr, &p);
    if (int e = set_policy(f, policy, &p)) return e;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  // An attribute object without a set of its own reports all bits. If it has bits beyond `set`, the call fails.
  int e = pthread_attr_getaffinity_np(attr, sizeof set, &set);
  if (e == 0 && !has_all(set)) return set_cpus(f, sizeof set, &set);
  return e == EINVAL && marked_bound(attr) ? sched_bind(f) : 0;
}

void scheduling_to_attr(FiberRecord* f, pthread_attr_t* attr) {
  if (!is_ours(f)) return;
  sched_param p = param_of(f);
  Busy busy;
  OwnCalls calls;  // libc asks the kernel for the bounds here, and NPTL does not
  pthread_attr_setschedpolicy(attr, policy_of(f) & ~SCHED_RESET_ON_FORK);
  pthread_attr_setschedparam(attr, &p);
  if (explicit_schedule(f)) pthread_attr_setinheritsched(attr, PTHREAD_EXPLICIT_SCHED);
}

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT pid_t gettid() noexcept {
  FiberRecord* me = tls_current;
  // In the child of a vfork this is the parent's memory.
  if (!me || !is_ours(me) || in_vfork_child()) return static_cast<pid_t>(raw_syscall(SYS_gettid));
  return static_cast<pid_t>(me->identity.id);
}

// These names are new in libc, which may lack them.
FIBERTHREAD_EXPORT pid_t pthread_gettid_np(pthread_t t) {
  int e;
  FiberRecord* f = target(t, &e);
  if (e) return -1;
  if (f) return static_cast<pid_t>(f->identity.id);
  auto* real = reinterpret_cast<pid_t (*)(pthread_t)>(dlvsym(RTLD_NEXT, "pthread_gettid_np", "GLIBC_2.42"));
  if (real) return real(t);
  return pthread_equal(t, pthread_self()) ? gettid() : -1;
}
FIBERTHREAD_EXPORT int sched_setattr(pid_t tid, sched_attr* a, unsigned flags) noexcept {
  FiberRecord* f = target(tid);
  return f ? fail(set_attributes(f, a, flags)) : static_cast<int>(with_errno(raw_syscall(SYS_sched_setattr, tid, arg(a), flags)));
}
FIBERTHREAD_EXPORT int sched_getattr(pid_t tid, sched_attr* a, unsigned size, unsigned flags) noexcept {
  FiberRecord* f = target(tid);
  return static_cast<int>(with_errno(raw_syscall(SYS_sched_getattr, f ? kernel_thread_of(f) : tid, arg(a), size, flags)));
}

FIBERTHREAD_EXPORT int pthread_setaffinity_np(pthread_t t, size_t size, const cpu_set_t* set) noexcept {
  int e;
  FiberRecord* f = target(t, &e);
  if (e) return e;
  return f ? set_cpus(f, size, set) : REAL(pthread_setaffinity_np)(t, size, set);
}
FIBERTHREAD_EXPORT int pthread_getaffinity_np(pthread_t t, size_t size, cpu_set_t* set) noexcept {
  int e;
  FiberRecord* f = target(t, &e);
  if (e) return e;
  if (!f) return REAL(pthread_getaffinity_np)(t, size, set);
  long n = get_cpus(f, size, set);
  if (n < 0) return static_cast<int>(-n);
  memset(reinterpret_cast<char*>(set) + n, 0, size - static_cast<size_t>(n));
  return 0;
}
FIBERTHREAD_EXPORT int sched_setaffinity(pid_t tid, size_t size, const cpu_set_t* set) noexcept {
  FiberRecord* f = target(tid);
  return f ? fail(set_cpus(f, size, set)) : REAL(sched_setaffinity)(tid, size, set);
}
FIBERTHREAD_EXPORT int sched_getaffinity(pid_t tid, size_t size, cpu_set_t* set) noexcept {
  FiberRecord* f = target(tid);
  if (!f) return REAL(sched_getaffinity)(tid, size, set);
  long n = get_cpus(f, size, set);
  if (n < 0) return fail(static_cast<int>(-n));
  memset(reinterpret_cast<char*>(set) + n, 0, size - static_cast<size_t>(n));
  return 0;
}

FIBERTHREAD_EXPORT int pthread_setschedparam(pthread_t t, int policy, const sched_param* p) noexcept {
  int e;
  FiberRecord* f = target(t, &e);
  if (e) return e;
  return f ? set_policy(f, policy, p) : REAL(pthread_setschedparam)(t, policy, p);
}
FIBERTHREAD_EXPORT int pthread_getschedparam(pthread_t t, int* policy, sched_param* p) noexcept {
  int e;
  FiberRecord* f = target(t, &e);
  if (e) return e;
  if (!f) return REAL(pthread_getschedparam)(t, policy, p);
  *policy = policy_of(f);
  *p = param_of(f);
  return 0;
}
FIBERTHREAD_EXPORT int pthread_setschedprio(pthread_t t, int priority) noexcept {
  int e;
  FiberRecord* f = target(t, &e);
  if (e) return e;
  sched_param p = {priority};
  return f ? set_priority(f, &p) : REAL(pthread_setschedprio)(t, priority);
}
FIBERTHREAD_EXPORT int sched_setscheduler(pid_t tid, int policy, const sched_param* p) noexcept {
  FiberRecord* f = target(tid);
  return f ? fail(set_policy(f, policy, p)) : REAL(sched_setscheduler)(tid, policy, p);
}
FIBERTHREAD_EXPORT int sched_getscheduler(pid_t tid) noexcept {
  FiberRecord* f = target(tid);
  return f ? policy_of(f) : REAL(sched_getscheduler)(tid);
}
FIBERTHREAD_EXPORT int sched_setparam(pid_t tid, const sched_param* p) noexcept {
  FiberRecord* f = target(tid);
  return f ? fail(set_priority(f, p)) : REAL(sched_setparam)(tid, p);
}
FIBERTHREAD_EXPORT int sched_getparam(pid_t tid, sched_param* p) noexcept {
  FiberRecord* f = target(tid);
  if (!f) return REAL(sched_getparam)(tid, p);
  if (!p) return fail(EINVAL);
  sched_param now = param_of(f);
  return copy_user(p, &now) ? 0 : fail(EFAULT);
}
FIBERTHREAD_EXPORT int sched_rr_get_interval(pid_t tid, timespec* t) noexcept {
  FiberRecord* f = target(tid);
  return REAL(sched_rr_get_interval)(f ? kernel_thread_of(f) : tid, t);
}

FIBERTHREAD_ALIAS(__sched_setscheduler, sched_setscheduler);
FIBERTHREAD_ALIAS(__sched_getscheduler, sched_getscheduler);
FIBERTHREAD_ALIAS(__sched_getparam, sched_getparam);

FIBERTHREAD_EXPORT int getpriority(__priority_which_t which, id_t who) noexcept {
  FiberRecord* f = which == PRIO_PROCESS ? target(static_cast<int>(who)) : nullptr;
  if (!f) return REAL(getpriority)(which, who);
  return REAL(getpriority)(which, static_cast<id_t>(kernel_thread_of(f)));
}
FIBERTHREAD_EXPORT int setpriority(__priority_which_t which, id_t who, int value) noexcept {
  FiberRecord* f = which == PRIO_PROCESS ? target(static_cast<int>(who)) : nullptr;
  if (!f) return REAL(setpriority)(which, who, value);
  value = value < -20 ? -20 : value > 19 ? 19 : value;
  rlimit limit;
  bool allowed = value >= getpriority(which, who) || may_be_nice(0) ||
                 (getrlimit(RLIMIT_NICE, &limit) == 0 && limit.rlim_cur >= static_cast<rlim_t>(20 - value));
  if (value == getpriority(which, who)) return 0;
  if (!allowed) return fail(EACCES);
  return fail(errno_on_own_thread(f, [&](int tid) { return raw_syscall(SYS_setpriority, PRIO_PROCESS, tid, value); }));
}
FIBERTHREAD_EXPORT int nice(int by) noexcept {
  if (!target(0)) return REAL(nice)(by);
  int now = getpriority(PRIO_PROCESS, 0) + by;
  if (setpriority(PRIO_PROCESS, 0, now) != 0) return fail(errno == EACCES ? EPERM : errno);
  return getpriority(PRIO_PROCESS, 0);
}

// Fiber API; here because it writes the mark that scheduling_at_birth() reads. Makes threads with these attributes bound (1) or not (0).
FIBERTHREAD_EXPORT int fiberthread_attr_setbound(pthread_attr_t* attr, int bound) {
  if (bound != 0 && bound != 1) return EINVAL;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (!bound) return marked_bound(attr) ? pthread_attr_setaffinity_np(attr, 0, &set) : 0;
  // A thread with a set of CPUs is bound anyway.
  if (pthread_attr_getaffinity_np(attr, sizeof set, &set) != 0 || !has_all(set)) return 0;
  BoundMark m;
  memset(m.cpus, 0xff, sizeof m.cpus);
  memcpy(m.mark, kMark, sizeof kMark);
  return pthread_attr_setaffinity_np(attr, sizeof m, reinterpret_cast<cpu_set_t*>(&m));
}

FIBERTHREAD_EXPORT int pthread_setconcurrency(int n) noexcept {
  if (n < 0) return EINVAL;
  concurrency.store(n, std::memory_order_relaxed);
  sched_set_concurrency(static_cast<uint32_t>(n));
  return 0;
}
FIBERTHREAD_EXPORT int pthread_getconcurrency() noexcept { return concurrency.load(std::memory_order_relaxed); }

FIBERTHREAD_EXPORT int pthread_getcpuclockid(pthread_t t, clockid_t* clock) noexcept {
  int e;
  FiberRecord* f = target(t, &e);
  if (e) return e;
  if (!f) return REAL(pthread_getcpuclockid)(t, clock);
  *clock = cpu_clock_of(f);
  return 0;
}
