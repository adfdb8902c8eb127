// SPDX-License-Identifier: MIT
// syscall(): what a system call means for a fiber. Rust's std, libstdc++ and many others wait on futexes this way. Some programs ask for
// their tid, or end their thread.
#include "shim/syscall.h"

#include <fcntl.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "sched/asleep.h"
#include "sched/poller.h"
#include "sched/scheduler.h"
#include "shim/export.h"
#include "shim/filter.h"
#include "shim/futex.h"
#include "shim/own_thread.h"
#include "shim/process.h"
#include "shim/rings.h"
#include "shim/scheduling.h"
#include "shim/signal.h"
#include "shim/syscall_parts.h"

namespace fiberthread {
namespace {

using Handler = long(long, long, long, long, long, long);

template <class To>
To argument(long value) {
  if constexpr (std::is_pointer_v<To>) return reinterpret_cast<To>(value);
  else return static_cast<To>(value);
}

// Calls the function with as many of the arguments as it takes.
template <auto* kFunction>
[[gnu::always_inline]] inline auto call_with(long a, long b, long c, long d, long e, long f) {
  return [&]<class R, class... A>(R (*)(A...)) {
    const long all[] = {a, b, c, d, e, f};
    return [&]<size_t... i>(std::index_sequence<i...>) { return kFunction(argument<A>(all[i])...); }(std::index_sequence_for<A...>{});
  }(kFunction);
}

// A handler that returns what the kernel would return.
template <auto* kFunction>
long own(long a, long b, long c, long d, long e, long f) {
  return call_with<kFunction>(a, b, c, d, e, f);
}

// Does what the name of libc does.
template <auto* kFunction>
long by_name(long a, long b, long c, long d, long e, long f) {
  return kernel_result(call_with<kFunction>(a, b, c, d, e, f));
}

// Does the same for a name that is a cancellation point.
template <auto* kFunction>
long by_name_not_cancelled(long a, long b, long c, long d, long e, long f) {
  return not_cancelled([&] { return call_with<kFunction>(a, b, c, d, e, f); });
}

// These names take a variable number of arguments.
int fcntl_here(int fd, int command, long argument) { return fcntl(fd, command, argument); }
int ioctl_here(int fd, unsigned long request, long argument) { return ioctl(fd, request, argument); }
int prctl_here(int option, long b, long c, long d, long e) { return prctl(option, b, c, d, e); }

// Makes a call about a process. A thread's id stands for its process here.
template <long kNumber>
long of_process(long a, long b, long c, long d, long e, long f) {
  return plain_call(kNumber, process_of(static_cast<int>(a)), b, c, d, e, f);
}

// The calls that mean something special on a fiber, except those of futexes.
constexpr struct {
  long number;
  Handler* handler;
} kCalls[] = {
    // Threads and processes.
    {SYS_gettid, own<calls::gettid>},
    {SYS_set_tid_address, own<calls::set_tid_address>},
    {SYS_set_robust_list, own<calls::set_robust_list>},
    {SYS_get_robust_list, own<calls::get_robust_list>},
#ifdef SYS_rseq
    {SYS_rseq, own<calls::rseq>},
#endif
    {SYS_exit, own<calls::exit>},
#ifdef SYS_fork
    {SYS_fork, own<calls::fork>},
    {SYS_vfork, own<calls::fork>},
#endif
    {SYS_clone, own<calls::clone>},
#ifdef SYS_clone3
    {SYS_clone3, own<calls::clone3>},
#endif
    {SYS_execve, by_name<execve>},
    {SYS_execveat, by_name<execveat>},
    {SYS_wait4, by_name_not_cancelled<wait4>},
    {SYS_prctl, by_name<prctl_here>},
    {SYS_mlockall, by_name<mlockall>},
    {SYS_munlockall, by_name<munlockall>},
#ifdef SYS_arch_prctl
    {SYS_arch_prctl, own<calls::arch_prctl>},
#endif
    {SYS_capget, own<calls::capget>},
    {SYS_capset, own<calls::capset>},
    {SYS_pidfd_open, own<calls::pidfd_open>},
    {SYS_perf_event_open, own<calls::perf_event_open>},
    {SYS_getsid, of_process<SYS_getsid>},
    {SYS_getpgid, of_process<SYS_getpgid>},
    {SYS_setpgid, own<calls::setpgid>},
    {SYS_prlimit64, of_process<SYS_prlimit64>},
    {SYS_process_vm_readv, of_process<SYS_process_vm_readv>},
    {SYS_process_vm_writev, of_process<SYS_process_vm_writev>},
    {SYS_move_pages, of_process<SYS_move_pages>},
    {SYS_migrate_pages, of_process<SYS_migrate_pages>},
    // Scheduling.
    {SYS_sched_yield, by_name<sched_yield>},
    {SYS_sched_setaffinity, by_name<sched_setaffinity>},
    {SYS_sched_getaffinity, own<calls::sched_getaffinity>},
    {SYS_sched_setscheduler, by_name<sched_setscheduler>},
    {SYS_sched_getscheduler, by_name<sched_getscheduler>},
    {SYS_sched_setparam, by_name<sched_setparam>},
    {SYS_sched_getparam, by_name<sched_getparam>},
    {SYS_sched_rr_get_interval, own<calls::sched_rr_get_interval>},
    {SYS_sched_setattr, by_name<sched_setattr>},
    {SYS_sched_getattr, by_name<sched_getattr>},
    {SYS_setpriority, by_name<setpriority>},
    {SYS_getpriority, own<calls::getpriority>},
    {SYS_ioprio_get, own<calls::ioprio_get>},
    {SYS_ioprio_set, own<calls::ioprio_set>},
    // Signals.
    {SYS_kill, by_name<kill>},
    {SYS_tkill, own<calls::tkill>},
    {SYS_tgkill, own<calls::tgkill>},
    {SYS_rt_tgsigqueueinfo, own<calls::rt_tgsigqueueinfo>},
    {SYS_rt_sigaction, own<calls::rt_sigaction>},
    {SYS_rt_sigprocmask, own<calls::rt_sigprocmask>},
    {SYS_rt_sigpending, own<calls::rt_sigpending>},
    {SYS_rt_sigsuspend, own<calls::rt_sigsuspend>},
    {SYS_rt_sigtimedwait, own<calls::rt_sigtimedwait>},
#ifdef SYS_signalfd
    {SYS_signalfd, own<calls::signalfd>},
#endif
    {SYS_signalfd4, own<calls::signalfd4>},
    {SYS_sigaltstack, by_name<sigaltstack>},
#ifdef SYS_pause
    {SYS_pause, by_name_not_cancelled<pause>},
#endif
    // Clocks and timers.
    {SYS_nanosleep, own<calls::nanosleep>},
    {SYS_clock_nanosleep, own<calls::clock_nanosleep>},
    {SYS_clock_gettime, own<calls::clock_gettime>},
    {SYS_clock_getres, own<calls::clock_getres>},
    {SYS_clock_settime, own<calls::clock_settime>},
    {SYS_getrusage, own<calls::getrusage>},
    {SYS_timer_create, own<calls::timer_create>},
    {SYS_timer_settime, own<calls::timer_settime>},
    {SYS_timer_gettime, own<calls::timer_gettime>},
    {SYS_timer_getoverrun, own<calls::timer_getoverrun>},
    {SYS_timer_delete, own<calls::timer_delete>},
    // Descriptors: calls that wait for them park, and the poller is told of calls that end them.
    {SYS_read, by_name_not_cancelled<read>},
    {SYS_write, by_name_not_cancelled<write>},
    {SYS_readv, by_name_not_cancelled<readv>},
    {SYS_writev, by_name_not_cancelled<writev>},
    {SYS_pread64, by_name_not_cancelled<pread64>},
    {SYS_fsync, by_name_not_cancelled<fsync>},
    {SYS_fdatasync, by_name_not_cancelled<fdatasync>},
    {SYS_sendfile, by_name<sendfile>},
    {SYS_splice, by_name_not_cancelled<splice>},
    {SYS_tee, by_name_not_cancelled<tee>},
    {SYS_flock, by_name<flock>},
    {SYS_fcntl, by_name<fcntl_here>},
    {SYS_ioctl, by_name<ioctl_here>},
    {SYS_close, by_name_not_cancelled<close>},
    {SYS_close_range, by_name<close_range>},
#ifdef SYS_dup2
    {SYS_dup2, by_name<dup2>},
#endif
    {SYS_dup3, by_name<dup3>},
    // Sockets.
    {SYS_recvfrom, by_name_not_cancelled<recvfrom>},
    {SYS_sendto, by_name_not_cancelled<sendto>},
    {SYS_recvmsg, by_name_not_cancelled<recvmsg>},
    {SYS_sendmsg, by_name_not_cancelled<sendmsg>},
    {SYS_recvmmsg, by_name_not_cancelled<recvmmsg>},
    {SYS_sendmmsg, by_name_not_cancelled<sendmmsg>},
    {SYS_accept, by_name_not_cancelled<accept>},
    {SYS_accept4, by_name_not_cancelled<accept4>},
    {SYS_connect, by_name_not_cancelled<connect>},
    {SYS_shutdown, by_name<shutdown>},
    {SYS_setsockopt, by_name<setsockopt>},
// Waits for many descriptors.
#ifdef SYS_poll
    {SYS_poll, by_name_not_cancelled<poll>},
    {SYS_epoll_wait, by_name_not_cancelled<epoll_wait>},
#endif
    {SYS_ppoll, own<calls::ppoll>},
    {SYS_pselect6, own<calls::pselect6>},
    {SYS_epoll_pwait, own<calls::epoll_pwait>},
    {kEpollPwait2, own<calls::epoll_pwait2>},
};

// Returns by a call's number its place in kCalls, plus one. 0: it is not there. These are bytes, since the loader would have to relocate
// addresses.
struct Places {
  static constexpr long kNumbers = 512;
  uint8_t of[kNumbers] = {};

  consteval Places() {
    static_assert(sizeof kCalls / sizeof *kCalls < 256);
    uint8_t place = 0;
    for (auto& call : kCalls) {
      if (of[call.number]) __builtin_trap();  // named twice, so this is no constant
      of[call.number] = ++place;
    }
  }
};
constexpr Places kPlaces;

long in_fiber(long nr, long a, long b, long c, long d, long e, long f) {
  size_t place = static_cast<unsigned long>(nr) < Places::kNumbers ? kPlaces.of[nr] : 0;
  if (place) return kCalls[place - 1].handler(a, b, c, d, e, f);
  auto call = [&] { return plain_call(nr, a, b, c, d, e, f); };
  return call_is_of_thread(nr, b) ? on_own_thread(nr, a, call) : call();
}

}  // namespace

long syscall_of_fiber(long nr, long a, long b, long c, long d, long e, long f) {
  if (nr == SYS_futex && sched_started()) return call_with<futex_call>(a, b, c, d, e, f);
  if (__builtin_expect(nr >= kFutexWake && nr <= kFutexRequeue, 0) && sched_started()) {
    if (nr == kFutexWake) return call_with<futex2_wake>(a, b, c, d, e, f);
    return nr == kFutexWait ? call_with<futex2_wait>(a, b, c, d, e, f) : call_with<futex2_requeue>(a, b, c, d, e, f);
  }
  if (__builtin_expect(nr == SYS_io_uring_setup || nr == SYS_io_uring_register, 0)) return ring_call(nr, a, b, c, d);
  FiberRecord* me = tls_current;
  bool fiber = me && sched_started() && !me->run.kernel;
  if (nr == SYS_clone && a & CLONE_VM && !(a & CLONE_THREAD)) poll_memory_shared();
  if (nr == SYS_mq_notify && b) asleep_make_no_copies();
  bool sets_filter = (nr == SYS_seccomp && a <= SECCOMP_SET_MODE_FILTER) || (nr == SYS_prctl && a == PR_SET_SECCOMP);
  if (__builtin_expect(sets_filter, 0)) {
    bool has_program = nr == SYS_seccomp ? a == SECCOMP_SET_MODE_FILTER : b == SECCOMP_MODE_FILTER;
    auto call = [&](long program) { return program_syscall(nr, a, b, has_program ? program : c, d, e, f); };
    return set_filter(nr, a, b, has_program ? reinterpret_cast<void*>(c) : nullptr, call);
  }
  return fiber && !in_vfork_child() ? in_fiber(nr, a, b, c, d, e, f) : program_syscall(nr, a, b, c, d, e, f);
}

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT long syscall(long nr, ...) noexcept {
  va_list list;
  va_start(list, nr);
  long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
  long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
  va_end(list);
  long r = syscall_of_fiber(nr, a, b, c, d, e, f);
  if (r >= 0 || r < -4095) return r;
  errno = static_cast<int>(-r);
  return -1;
}
