// Policies, priorities, affinity and nice values of single threads. Fibers have none of them in the kernel: in this first form
// they are checked as the kernel would, kept, and reported back, without effect. Before the first thread is made the
// kernel's calls are what they are, and the scheduler is made for the CPUs that they leave.
#include "shim/scheduling.h"

#include <errno.h>
#include <limits.h>
#include <linux/capability.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sched/stack.h"
#include "sched/worker.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/signal.h"
#include "shim/thread.h"

namespace fiberthread {
namespace {

struct Scheduling {
  uint64_t cpus[5];  // up to 320 CPUs
  bool has_cpus, has_nice, resets;  // SCHED_RESET_ON_FORK
  int8_t nice;
  int16_t policy;
  int16_t priority;
};
Scheduling& state_of(Fiber* f) { return shim_share<Scheduling, 128, 192>(f); }

std::atomic<int> concurrency{0};

// A fiber's settings are ours to keep; a thread of the kernel's are the kernel's.
bool is_ours(Fiber* f) { return f && sched_started() && !f->kernel; }

bool may_be_nice(int rtprio_needed) {
  rlimit limit;
  if (rtprio_needed && getrlimit(RLIMIT_RTPRIO, &limit) == 0 && limit.rlim_cur >= static_cast<rlim_t>(rtprio_needed)) return true;
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (raw_syscall(SYS_capget, arg(&header), arg(data)) != 0) return false;
  return data[0].effective >> CAP_SYS_NICE & 1;
}

int set_policy(Fiber* f, int policy, const sched_param* p) {
  if (!p || policy < 0) return EINVAL;
  bool resets = policy & SCHED_RESET_ON_FORK;
  policy &= ~SCHED_RESET_ON_FORK;
  int priority = p->sched_priority, error = errno;
  int low = sched_get_priority_min(policy), high = sched_get_priority_max(policy);
  errno = error;
  constexpr int kDeadline = 6;  // has more parameters than these calls have
  if (policy == kDeadline || low < 0 || priority < low || priority > high) return EINVAL;
  Scheduling& s = state_of(f);
  bool real_time = policy == SCHED_FIFO || policy == SCHED_RR;
  if (real_time && !(s.policy == policy && priority <= s.priority) && !may_be_nice(priority)) return EPERM;
  s.policy = static_cast<int16_t>(policy);
  s.priority = static_cast<int16_t>(priority);
  s.resets = resets;
  return 0;
}
int set_priority(Fiber* f, const sched_param* p) {
  const Scheduling& s = state_of(f);
  return set_policy(f, s.policy | (s.resets ? SCHED_RESET_ON_FORK : 0), p);
}

int set_cpus(Fiber* f, size_t size, const cpu_set_t* set) {
  if (!set) return EFAULT;
  cpu_set_t allowed;
  long n = raw_syscall(SYS_sched_getaffinity, 0, sizeof allowed, arg(&allowed));
  if (n < 0) return static_cast<int>(-n);
  Scheduling& s = state_of(f);
  uint64_t cpus[5] = {};
  bool any = false;
  for (int i = 0; i < static_cast<int>(sizeof cpus) * 8 && i < static_cast<int>(size) * 8; i++)
    if (CPU_ISSET_S(i, size, set) && CPU_ISSET_S(i, static_cast<size_t>(n), &allowed)) {
      cpus[i / 64] |= uint64_t{1} << i % 64;
      any = true;
    }
  if (!any) return EINVAL;
  memcpy(s.cpus, cpus, sizeof cpus);
  s.has_cpus = true;
  return 0;
}

// As the system call: bytes written, or a negative errno value.
long get_cpus(Fiber* f, size_t size, cpu_set_t* set) {
  long n = raw_syscall(SYS_sched_getaffinity, 0, static_cast<long>(size), arg(set));
  Scheduling& s = state_of(f);
  if (n <= 0 || !s.has_cpus) return n;
  memset(set, 0, size);
  memcpy(set, s.cpus, size < sizeof s.cpus ? size : sizeof s.cpus);
  return n;
}

// For calls that take a tid: the fiber, or null where the kernel has to answer.
Fiber* target(int tid) {
  if (!sched_started() || in_vfork_child()) return nullptr;
  Fiber* f = fiber_of_tid(tid);
  return is_ours(f) && !f->done.load(std::memory_order_acquire) ? f : nullptr;
}

int fail(int e) {
  if (e == 0) return 0;
  errno = e;
  return -1;
}

// For calls that take a handle. *e is set if it is of nobody.
Fiber* target(pthread_t t, int* e) {
  *e = 0;
  if (!sched_started()) return nullptr;
  Fiber* f = fiber_of(t);
  if (f ? f->done.load(std::memory_order_acquire) && is_ours(f) : stale_handle(t)) *e = ESRCH;
  return is_ours(f) ? f : nullptr;
}

}  // namespace

int scheduling_at_birth(Fiber* f, Fiber* creator, const pthread_attr_t* attr) {
  Scheduling& s = state_of(f);
  if (is_ours(creator)) s = state_of(creator);
  if (s.resets) {
    if (s.policy == SCHED_FIFO || s.policy == SCHED_RR) s.policy = SCHED_OTHER, s.priority = 0;
    if (s.nice < 0) s.nice = 0;
    s.resets = false;
  }
  if (!attr) return 0;
  int inherit;
  if (pthread_attr_getinheritsched(attr, &inherit) == 0 && inherit == PTHREAD_EXPLICIT_SCHED) {
    int policy;
    sched_param p;
    pthread_attr_getschedpolicy(attr, &policy);
    pthread_attr_getschedparam(attr, &p);
    s.policy = SCHED_OTHER;
    s.priority = 0;
    if (int e = set_policy(f, policy, &p)) return e;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  // Without a set of its own, an attribute object answers with all bits.
  if (pthread_attr_getaffinity_np(attr, sizeof set, &set) == 0 && CPU_COUNT(&set) < CPU_SETSIZE)
    if (int e = set_cpus(f, sizeof set, &set)) return e;
  return 0;
}

Fiber* fiber_of_tid(int tid) {
  if (tid == 0) return self();
  if (tid < 0) return nullptr;
  if (main_fiber->id == static_cast<uint32_t>(tid)) return main_fiber;
  struct Search {
    uint32_t id;
    Fiber* found;
  } search{static_cast<uint32_t>(tid), nullptr};
  block_each(
      [](Fiber* f, void* p) {
        auto* s = static_cast<Search*>(p);
        if (f->id != s->id || !f->tcb || !f->valid.load(std::memory_order_acquire)) return true;
        s->found = f;
        return false;
      },
      &search);
  return search.found;
}

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT pid_t gettid() noexcept {
  Fiber* me = tls_current;
  // In the child of a vfork this is the parent's memory.
  if (!me || !is_ours(me) || in_vfork_child()) return static_cast<pid_t>(raw_syscall(SYS_gettid));
  return static_cast<pid_t>(me->id);
}

FIBERTHREAD_EXPORT int pthread_setaffinity_np(pthread_t t, size_t size, const cpu_set_t* set) noexcept {
  int e;
  Fiber* f = target(t, &e);
  if (e) return e;
  return f ? set_cpus(f, size, set) : REAL(pthread_setaffinity_np)(t, size, set);
}
FIBERTHREAD_EXPORT int pthread_getaffinity_np(pthread_t t, size_t size, cpu_set_t* set) noexcept {
  int e;
  Fiber* f = target(t, &e);
  if (e) return e;
  if (!f) return REAL(pthread_getaffinity_np)(t, size, set);
  long n = get_cpus(f, size, set);
  if (n < 0) return static_cast<int>(-n);
  memset(reinterpret_cast<char*>(set) + n, 0, size - static_cast<size_t>(n));
  return 0;
}
FIBERTHREAD_EXPORT int sched_setaffinity(pid_t tid, size_t size, const cpu_set_t* set) noexcept {
  Fiber* f = target(tid);
  return f ? fail(set_cpus(f, size, set)) : REAL(sched_setaffinity)(tid, size, set);
}
FIBERTHREAD_EXPORT int sched_getaffinity(pid_t tid, size_t size, cpu_set_t* set) noexcept {
  Fiber* f = target(tid);
  if (!f) return REAL(sched_getaffinity)(tid, size, set);
  long n = get_cpus(f, size, set);
  if (n < 0) return fail(static_cast<int>(-n));
  memset(reinterpret_cast<char*>(set) + n, 0, size - static_cast<size_t>(n));
  return 0;
}

FIBERTHREAD_EXPORT int pthread_setschedparam(pthread_t t, int policy, const sched_param* p) noexcept {
  int e;
  Fiber* f = target(t, &e);
  if (e) return e;
  return f ? set_policy(f, policy, p) : REAL(pthread_setschedparam)(t, policy, p);
}
FIBERTHREAD_EXPORT int pthread_getschedparam(pthread_t t, int* policy, sched_param* p) noexcept {
  int e;
  Fiber* f = target(t, &e);
  if (e) return e;
  if (!f) return REAL(pthread_getschedparam)(t, policy, p);
  *policy = state_of(f).policy;
  p->sched_priority = state_of(f).priority;
  return 0;
}
FIBERTHREAD_EXPORT int pthread_setschedprio(pthread_t t, int priority) noexcept {
  int e;
  Fiber* f = target(t, &e);
  if (e) return e;
  sched_param p = {priority};
  return f ? set_priority(f, &p) : REAL(pthread_setschedprio)(t, priority);
}
FIBERTHREAD_EXPORT int sched_setscheduler(pid_t tid, int policy, const sched_param* p) noexcept {
  Fiber* f = target(tid);
  return f ? fail(set_policy(f, policy, p)) : REAL(sched_setscheduler)(tid, policy, p);
}
FIBERTHREAD_EXPORT int sched_getscheduler(pid_t tid) noexcept {
  Fiber* f = target(tid);
  return f ? state_of(f).policy | (state_of(f).resets ? SCHED_RESET_ON_FORK : 0) : REAL(sched_getscheduler)(tid);
}
FIBERTHREAD_EXPORT int sched_setparam(pid_t tid, const sched_param* p) noexcept {
  Fiber* f = target(tid);
  return f ? fail(set_priority(f, p)) : REAL(sched_setparam)(tid, p);
}
FIBERTHREAD_EXPORT int sched_getparam(pid_t tid, sched_param* p) noexcept {
  Fiber* f = target(tid);
  if (!f) return REAL(sched_getparam)(tid, p);
  if (!p) return fail(EINVAL);
  p->sched_priority = state_of(f).priority;
  return 0;
}
FIBERTHREAD_EXPORT int sched_rr_get_interval(pid_t tid, timespec* t) noexcept {
  return REAL(sched_rr_get_interval)(target(tid) ? 0 : tid, t);
}

FIBERTHREAD_EXPORT int getpriority(__priority_which_t which, id_t who) noexcept {
  Fiber* f = which == PRIO_PROCESS ? target(static_cast<int>(who)) : nullptr;
  if (!f) return REAL(getpriority)(which, who);
  return state_of(f).has_nice ? state_of(f).nice : REAL(getpriority)(which, 0);
}
FIBERTHREAD_EXPORT int setpriority(__priority_which_t which, id_t who, int value) noexcept {
  Fiber* f = which == PRIO_PROCESS ? target(static_cast<int>(who)) : nullptr;
  if (!f) return REAL(setpriority)(which, who, value);
  value = value < -20 ? -20 : value > 19 ? 19 : value;
  rlimit limit;
  bool allowed = value >= getpriority(which, who) || may_be_nice(0) ||
                 (getrlimit(RLIMIT_NICE, &limit) == 0 && limit.rlim_cur >= static_cast<rlim_t>(20 - value));
  if (!allowed) return fail(EACCES);
  state_of(f).nice = static_cast<int8_t>(value);
  state_of(f).has_nice = true;
  return 0;
}
FIBERTHREAD_EXPORT int nice(int by) noexcept {
  if (!target(0)) return REAL(nice)(by);
  int now = getpriority(PRIO_PROCESS, 0) + by;
  if (setpriority(PRIO_PROCESS, 0, now) != 0) return fail(errno == EACCES ? EPERM : errno);
  return getpriority(PRIO_PROCESS, 0);
}

FIBERTHREAD_EXPORT int pthread_setconcurrency(int n) noexcept {
  if (n < 0) return EINVAL;
  concurrency.store(n, std::memory_order_relaxed);
  sched_set_concurrency(static_cast<uint32_t>(n));
  return 0;
}
FIBERTHREAD_EXPORT int pthread_getconcurrency() noexcept { return concurrency.load(std::memory_order_relaxed); }

// The clock of the kernel thread that runs it, or ran it last.
FIBERTHREAD_EXPORT int pthread_getcpuclockid(pthread_t t, clockid_t* clock) noexcept {
  int e;
  Fiber* f = target(t, &e);
  if (e) return e;
  if (!f) return REAL(pthread_getcpuclockid)(t, clock);
  Worker* w = __atomic_load_n(&f->worker, __ATOMIC_RELAXED);
  *clock = f == tls_current || !w ? CLOCK_THREAD_CPUTIME_ID : static_cast<clockid_t>(~static_cast<unsigned>(w->tid) << 3 | 6);
  return 0;
}
