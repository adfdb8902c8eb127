// syscall(): what a system call means for a fiber. Rust's std, libstdc++ and many others wait on futexes this way; some ask for
// their tid, or end their thread.
#include <errno.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <string.h>
#include <time.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "sched/glibc/tcb.h"
#include "sched/poller.h"
#include "sched/preempt.h"
#include "sched/worker.h"
#include "shim/blocking.h"
#include "shim/cancel.h"
#include "shim/clock.h"
#include "shim/export.h"
#include "shim/filter.h"
#include "shim/fork.h"
#include "shim/libgomp.h"
#include "shim/own_thread.h"
#include "shim/real.h"
#include "shim/scheduling.h"
#include "shim/shared_use.h"
#include "shim/signal.h"
#include "shim/thread.h"
#include "shim/time.h"
#include "shim/user_memory.h"
#include "sync/parking_lot.h"

namespace fiberthread {
namespace {

// Private futexes wait in the parking lot, with the bit set as the tag. Others may be another process's and are the kernel's.

long futex_wait_here(uint32_t* word, uint32_t expected, clockid_t clock, const timespec* user_t, bool relative, uint32_t bits) {
  timespec copy;
  if (user_t && !copy_user(&copy, user_t)) return -EFAULT;
  const timespec* t = user_t ? &copy : nullptr;
  if (t && (!valid(*t) || t->tv_sec < 0)) return -EINVAL;
  FiberRecord* me = self();
  uint64_t deadline = kNever;
  if (t && relative) {
    if (t->tv_sec < 4'000'000'000) deadline = (now_ns() + static_cast<uint64_t>(t->tv_sec * kNsPerSec + t->tv_nsec) + 1) & ~kFollowsRealtime;
  } else {
    deadline = deadline_from(clock, t);
  }
  for (;;) {
    Waiter w;
    w.tag = bits;
    uint32_t now;
    bool there = true;
    auto still = [&] { return (there = fiberthread_user_load(word, &now) == 0) && now == expected; };
    WakeReason r = park(word, w, still, {"futex", word}, deadline, kInterruptSafePoint);
    if (!there) return -EFAULT;
    if (r == WakeReason::Woken) return 0;
    if (r == WakeReason::Invalid) return -EAGAIN;
    if (r == WakeReason::Interrupted && (t || !signal_restarts(me))) return -EINTR;
    if (r == WakeReason::TimedOut) {
      if (relative || reached(clock, t)) return -ETIMEDOUT;
      deadline = deadline_from(clock, t);
    }
  }
}

long futex_wake_here(const uint32_t* word, int n, uint32_t bits) {
  WakeList list;
  {
    LockedQueue q(word);
    for (Waiter* w = q.first(); w && static_cast<int>(list.size()) < n;) {
      Waiter* next = w->next;
      if (w->tag & bits) list.add(q, *w);
      w = next;
    }
  }
  list.wake_all();
  return static_cast<long>(list.size());
}

// Locks whose word names their owner, which the kernel could not find: among the threads of this process they are ours, first come first
// served, without inheritance. Their waiters have no tag.
bool lives(uint32_t tid) {
  FiberRecord* f = fiber_of_tid(static_cast<int>(tid));
  if (f) return !f->done.load(std::memory_order_acquire);
  return raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), tid, 0) == 0;
}

long pi_lock(uint32_t* word, clockid_t clock, const timespec* user_t, bool waits) {
  timespec copy;
  if (user_t && !copy_user(&copy, user_t)) return -EFAULT;
  const timespec* t = user_t ? &copy : nullptr;
  if (t && (!valid(*t) || t->tv_sec < 0)) return -EINVAL;
  FiberRecord* me = self();
  constexpr uint64_t kLook = 100'000'000;  // ns: an owner without a robust list ends unheard
  bool waited = false;
  for (;;) {
    uint32_t now;
    if (fiberthread_user_load(word, &now) != 0) return -EFAULT;
    uint32_t owner = now & FUTEX_TID_MASK;
    if (owner == me->id) return -EDEADLK;
    uint32_t wanted = owner ? now | FUTEX_WAITERS : now | me->id;  // the other bits stay: that the last one died, and that somebody waits
    long changed = fiberthread_user_exchange(word, &now, wanted);
    if (changed < 0) return changed;
    if (changed == 1) continue;
    if (owner == 0) return 0;
    uint32_t expected = wanted;
    if (!lives(owner)) {  // or has given it up before it ended
      if (fiberthread_user_load(word, &now) == 0 && now != expected) continue;
      if (!waited) return -ESRCH;
      // Who waits when the owner ends gets the lock.
      if (fiberthread_user_exchange(word, &now, me->id | FUTEX_OWNER_DIED | FUTEX_WAITERS) == 0) return 0;
      continue;
    }
    if (!waits) return -EAGAIN;
    Waiter w;
    auto still = [&] { return fiberthread_user_load(word, &now) == 0 && now == expected; };
    uint64_t look = (now_ns() + kLook) & ~kFollowsRealtime, deadline = deadline_from(clock, t);
    WakeReason r = park(word, w, still, {"futex (PI)", word}, deadline < look ? deadline : look);
    if (r == WakeReason::Woken && w.token) return 0;  // handed over
    if (r == WakeReason::TimedOut && t && reached(clock, t)) return -ETIMEDOUT;
    waited |= r != WakeReason::Invalid;
  }
}

long pi_unlock(uint32_t* word) {
  FiberRecord* me = self();
  uint32_t now;
  if (fiberthread_user_load(word, &now) != 0) return -EFAULT;
  if ((now & FUTEX_TID_MASK) != me->id) return -EPERM;
  WakeList list;
  {
    LockedQueue q(word);
    Waiter *first = nullptr, *second = nullptr;
    for (Waiter* w = q.first(); w && !second; w = w->next)
      if (!w->tag) (first ? second : first) = w;
    // Who has set the bit meanwhile looks at the word again before he waits.
    uint32_t next = first ? first->fiber->id | (second ? FUTEX_WAITERS : 0) : 0;
    long changed;
    do changed = fiberthread_user_exchange(word, &now, next);
    while (changed == 1);
    if (changed < 0) return changed;
    if (first) {
      first->token = 1;
      list.add(q, *first);
    }
  }
  list.wake_all();
  return 0;
}

}  // namespace

void pi_owner_died(const uint32_t* word) {
  WakeList list;
  {
    LockedQueue q(word);
    Waiter* w = q.first();
    while (w && w->tag) w = w->next;
    if (w) list.add(q, *w);
  }
  list.wake_all();
}

namespace {

constexpr long kEpollPwait2 = 441;  // Linux' number, which older headers lack

// The mask of a call that waits with another one. The rest of the set is not the kernel's.
long copy_mask(long from, size_t size, sigset_t& set) {
  uint64_t mask = 0;
  if (from && size != sizeof mask) return -EINVAL;
  if (from && !copy_user(&mask, reinterpret_cast<uint64_t*>(from))) return -EFAULT;
  sigemptyset(&set);
  memcpy(&set, &mask, sizeof mask);
  return 0;
}

// A timeout of which Linux, unlike libc, tells at the end what is left.
class Remaining {
 public:
  explicit Remaining(long user) : user_(reinterpret_cast<timespec*>(user)) {
    if (!user_) return;
    if (!copy_user(&time_, user_)) error_ = -EFAULT;
    else if (!valid(time_) || time_.tv_sec < 0) error_ = -EINVAL;
    else if (time_.tv_sec || time_.tv_nsec) start_ = now_ns();
  }
  ~Remaining() {
    if (!start_) return;
    auto all = static_cast<__int128>(time_.tv_sec) * kNsPerSec + time_.tv_nsec, left = all - static_cast<__int128>(now_ns() - start_);
    if (left < 0) left = 0;
    time_ = {static_cast<time_t>(left / kNsPerSec), static_cast<long>(left % kNsPerSec)};
    copy_user(user_, &time_);
  }
  long error() const { return error_; }
  const timespec* get() const { return user_ ? &time_ : nullptr; }

 private:
  timespec* user_;
  timespec time_{};
  uint64_t start_ = 0;
  long error_ = 0;
};

// The kernel's call. Who may be cancelled anywhere makes it in libc, where it can be stopped.
long plain_call(long nr, long a, long b, long c, long d, long e, long f) {
  if (__builtin_expect(!cancel_is_asynchronous(self()), 1)) return program_syscall(nr, a, b, c, d, e, f);
  int error = errno;
  long r = REAL(syscall)(nr, a, b, c, d, e, f);
  if (r != -1) return r;
  r = -errno;
  errno = error;
  return r;
}

long futex_call(uint32_t* word, int op, uint32_t value, long fourth, uint32_t* word2, uint32_t value3) {
  constexpr uint32_t kAll = FUTEX_BITSET_MATCH_ANY;
  int command = op & FUTEX_CMD_MASK;
  auto kernel = [&] {
    auto call = [&] { return plain_call(SYS_futex, arg(word), op, static_cast<long>(value), fourth, arg(word2), static_cast<long>(value3)); };
    uint32_t now;
    bool waits = (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET) && has_slot_to_give() && reinterpret_cast<uintptr_t>(word) % sizeof *word == 0 &&
                 fiberthread_user_load(word, &now) == 0 && now == value;
    if (!waits) return call();
    Blocking blocking;
    return call();
  };
  if (!(op & FUTEX_PRIVATE_FLAG) || reinterpret_cast<uintptr_t>(word) % sizeof *word || reinterpret_cast<uintptr_t>(word) < 4096) return kernel();
  auto* t = reinterpret_cast<const timespec*>(fourth);
  bool real_time = op & FUTEX_CLOCK_REALTIME;
  uint32_t bits = command == FUTEX_WAIT_BITSET || command == FUTEX_WAKE_BITSET ? value3 : kAll;
  if (bits == 0) return -EINVAL;
  constexpr int kLockPi2 = 13;
  if (real_time && command != FUTEX_WAIT_BITSET && command != kLockPi2) return kernel();  // no such call
  // Kernel threads may wait by system calls that we do not see.
  auto wake_more = [&](long woken) {
    if (woken >= static_cast<int>(value)) return woken;
    long more = raw_syscall(SYS_futex, arg(word), op, static_cast<int>(value) - woken, 0, 0, static_cast<long>(value3));
    return more < 0 ? (woken ? woken : more) : woken + more;
  };
  switch (command) {
    case FUTEX_WAIT:
      return futex_wait_here(word, value, CLOCK_MONOTONIC, t, true, bits);
    case FUTEX_WAIT_BITSET:
      return futex_wait_here(word, value, real_time ? CLOCK_REALTIME : CLOCK_MONOTONIC, t, false, bits);
    case FUTEX_WAKE:
    case FUTEX_WAKE_BITSET:
      return wake_more(futex_wake_here(word, static_cast<int>(value) < 1 ? 1 : static_cast<int>(value), bits));
    case FUTEX_CMP_REQUEUE:
    case FUTEX_REQUEUE: {
      if (static_cast<int>(value) < 0 || static_cast<int>(fourth) < 0 || reinterpret_cast<uintptr_t>(word2) % sizeof *word2) return -EINVAL;
      uint32_t now;
      if (command == FUTEX_CMP_REQUEUE) {
        if (fiberthread_user_load(word, &now) != 0) return -EFAULT;
        if (now != value3) return -EAGAIN;
      }
      // Those to be moved are woken instead, which a futex's users must expect anyway.
      long n = static_cast<long>(value) + static_cast<int>(fourth);
      return futex_wake_here(word, n > 0x7fffffff ? 0x7fffffff : static_cast<int>(n), kAll);
    }
    case FUTEX_WAKE_OP: {
      long r = kernel();
      if (r < 0) return r;
      return r + futex_wake_here(word, static_cast<int>(value), kAll) + futex_wake_here(word2, static_cast<int>(fourth), kAll);
    }
    case FUTEX_LOCK_PI:
      return pi_lock(word, CLOCK_REALTIME, t, true);
    case kLockPi2:
      return pi_lock(word, real_time ? CLOCK_REALTIME : CLOCK_MONOTONIC, t, true);
    case FUTEX_TRYLOCK_PI:
      return pi_lock(word, CLOCK_REALTIME, nullptr, false);
    case FUTEX_UNLOCK_PI:
      return pi_unlock(word);
    default:
      return kernel();
  }
}

// What the thread named by set_tid_address. The kernel would clear it when the worker ends.
thread_local constinit uint32_t* named_word = nullptr;

// Results of libc-style calls as the kernel gives them.
long as_kernel(long r) { return r == -1 ? -errno : r; }

// syscall() is no cancellation point, whatever the call.
class NotCancelled {
 public:
  NotCancelled() : asynchronous_(cancel_is_asynchronous(self())) {
    if (!asynchronous_) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old_);
  }
  ~NotCancelled() {
    if (!asynchronous_) pthread_setcancelstate(old_, nullptr);
  }

 private:
  bool asynchronous_;
  int old_;
};

template <class Call>
long not_cancelled(Call call) {
  NotCancelled no;
  return as_kernel(call());
}

// A signal's action, by the names' own bookkeeping. libc's two signals are not to be had here either: one of them preempts.
long action_here(int sig, const kernel_handler* act, kernel_handler* old, size_t size) {
  if (size != 8 || sig == 32 || sig == 33) return -EINVAL;
  kernel_handler k;
  struct sigaction wanted, before;
  if (act) {
    if (!copy_user(&k, act)) return -EFAULT;
    memset(&wanted, 0, sizeof wanted);
    wanted.sa_sigaction = k.handler;
    wanted.sa_flags = static_cast<int>(k.flags);
    memcpy(&wanted.sa_mask, &k.mask, sizeof k.mask);
  }
  if (sigaction(sig, act ? &wanted : nullptr, &before) != 0) return -errno;
  if (!old) return 0;
  memset(&k, 0, sizeof k);
  k.handler = before.sa_sigaction;
  k.flags = static_cast<unsigned>(before.sa_flags);
  memcpy(&k.mask, &before.sa_mask, sizeof k.mask);
  return copy_user(old, &k) ? 0 : -EFAULT;
}

long sleep_here(clockid_t clock, int flags, const timespec* t, timespec* left) {
  // Others' answers are the kernel's, which looks at the clock first.
  bool known = clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME || clock == CLOCK_TAI;
  if (!known && (clock > 0 || !owner_of_clock(clock))) return program_syscall(SYS_clock_nanosleep, clock, flags, arg(t), arg(left));
  timespec copy, rest;
  if (!copy_user(&copy, t)) return -EFAULT;
  NotCancelled not_cancelled;
  int e = clock_nanosleep(clock, flags, &copy, left && !(flags & TIMER_ABSTIME) ? &rest : nullptr);
  if (e == EINTR && left && !(flags & TIMER_ABSTIME) && !copy_user(left, &rest)) return -EFAULT;
  return -e;
}

long mask_here(int how, const uint64_t* set, uint64_t* old, size_t size) {
  if (size != 8) return -EINVAL;
  uint64_t wanted, before;
  if (set && !copy_user(&wanted, set)) return -EFAULT;
  if (int e = signal_mask_raw(how, set ? &wanted : nullptr, &before)) return -e;
  return !old || copy_user(old, &before) ? 0 : -EFAULT;
}

// libc's handle of a timer that signals is the kernel's number.
long timer_here(clockid_t clock, struct sigevent* event, int* number) {
  struct sigevent copy;
  if (event && !copy_user(&copy, event)) return -EFAULT;
  bool thread = event && copy.sigev_notify == SIGEV_THREAD;  // which to libc means a function
  if (thread) return program_syscall(SYS_timer_create, clock, arg(event), arg(number));
  timer_t timer;
  if (timer_create(clock, event ? &copy : nullptr, &timer) != 0) return -errno;
  int n = static_cast<int>(reinterpret_cast<intptr_t>(timer));
  if (copy_user(number, &n)) return 0;
  timer_delete(timer);
  return -EFAULT;
}

// For another thread's sake: kernel threads that are none of ours have tids of the kernel's.
FiberRecord* scheduled_fiber(int tid) {
  FiberRecord* f = fiber_of_tid(tid);
  return f && !f->kernel ? f : nullptr;
}

long in_fiber(long nr, long a, long b, long c, long d, long e, long f) {
  FiberRecord* me = self();
  switch (nr) {
    case SYS_futex:
      return futex_call(reinterpret_cast<uint32_t*>(a), static_cast<int>(b), static_cast<uint32_t>(c), d,
                        reinterpret_cast<uint32_t*>(e), static_cast<uint32_t>(f));
    case SYS_gettid:
      return me->id;
    case SYS_set_tid_address:
      named_word = reinterpret_cast<uint32_t*>(a);
      return me->id;
    case SYS_set_robust_list:
      if (b != kRobustListSize) return -EINVAL;
      own_robust_list(me) = reinterpret_cast<void*>(a);
      return 0;
    case SYS_get_robust_list:
      if (a != 0 && a != me->id) return -ESRCH;
      {
        void* list = own_robust_list(me);
        if (!list) list = tcb_robust_list(me->tcb);
        size_t size = kRobustListSize;
        bool there = copy_user(reinterpret_cast<size_t*>(c), &size) && copy_user(reinterpret_cast<void**>(b), &list);
        return there ? 0 : -EFAULT;
      }
#ifdef SYS_rseq
    case SYS_rseq:  // it would belong to the worker
      return -ENOSYS;
#endif
    case SYS_exit:
      me->result = nullptr;
      if (sched_count_end()) raw_syscall(SYS_exit_group, a);
      thread_exit_raw();
    case SYS_tkill:
      return -thread_kill_tid(-1, static_cast<int>(a), static_cast<int>(b), nullptr);
    case SYS_tgkill:
      if (static_cast<int>(a) <= 0) return -EINVAL;
      return -thread_kill_tid(static_cast<int>(a), static_cast<int>(b), static_cast<int>(c), nullptr);
    case SYS_rt_tgsigqueueinfo: {
      siginfo_t info;
      if (!copy_user(&info, reinterpret_cast<siginfo_t*>(d))) return -EFAULT;
      return -thread_kill_tid(static_cast<int>(a), static_cast<int>(b), static_cast<int>(c), &info);
    }
    case SYS_kill:
      return as_kernel(kill(static_cast<pid_t>(a), static_cast<int>(b)));
    case SYS_rt_sigaction:
      return action_here(static_cast<int>(a), reinterpret_cast<kernel_handler*>(b), reinterpret_cast<kernel_handler*>(c), static_cast<size_t>(d));
    case SYS_rt_sigprocmask:
      return mask_here(static_cast<int>(a), reinterpret_cast<uint64_t*>(b), reinterpret_cast<uint64_t*>(c), static_cast<size_t>(d));
    case SYS_rt_sigpending: {
      if (b != 8) return program_syscall(nr, a, b);
      uint64_t set = signal_pending_set(me);
      return copy_user(reinterpret_cast<uint64_t*>(a), &set) ? 0 : -EFAULT;
    }
#ifdef SYS_signalfd
    case SYS_signalfd:
#endif
    case SYS_signalfd4: {
      uint64_t mask;
      sigset_t set;
      if (c != sizeof mask) return -EINVAL;
      if (!copy_user(&mask, reinterpret_cast<uint64_t*>(b))) return -EFAULT;
      memcpy(&set, &mask, sizeof mask);
      return as_kernel(signalfd(static_cast<int>(a), &set, nr == SYS_signalfd4 ? static_cast<int>(d) : 0));
    }
    case SYS_sigaltstack:
      return as_kernel(sigaltstack(reinterpret_cast<stack_t*>(a), reinterpret_cast<stack_t*>(b)));
    case SYS_sched_yield:
      return sched_yield();
    // Descriptors: what waits for them parks, what ends them is told to the poller.
    case SYS_read:
      return not_cancelled([&] { return read(static_cast<int>(a), reinterpret_cast<void*>(b), static_cast<size_t>(c)); });
    case SYS_write:
      return not_cancelled([&] { return write(static_cast<int>(a), reinterpret_cast<void*>(b), static_cast<size_t>(c)); });
    case SYS_readv:
      return not_cancelled([&] { return readv(static_cast<int>(a), reinterpret_cast<iovec*>(b), static_cast<int>(c)); });
    case SYS_writev:
      return not_cancelled([&] { return writev(static_cast<int>(a), reinterpret_cast<iovec*>(b), static_cast<int>(c)); });
    case SYS_recvfrom:
      return not_cancelled([&] {
        return recvfrom(static_cast<int>(a), reinterpret_cast<void*>(b), static_cast<size_t>(c), static_cast<int>(d),
                        reinterpret_cast<sockaddr*>(e), reinterpret_cast<socklen_t*>(f));
      });
    case SYS_sendto:
      return not_cancelled([&] {
        return sendto(static_cast<int>(a), reinterpret_cast<void*>(b), static_cast<size_t>(c), static_cast<int>(d),
                      reinterpret_cast<sockaddr*>(e), static_cast<socklen_t>(f));
      });
    case SYS_recvmsg:
      return not_cancelled([&] { return recvmsg(static_cast<int>(a), reinterpret_cast<msghdr*>(b), static_cast<int>(c)); });
    case SYS_sendmsg:
      return not_cancelled([&] { return sendmsg(static_cast<int>(a), reinterpret_cast<msghdr*>(b), static_cast<int>(c)); });
    case SYS_accept:
      return not_cancelled([&] { return accept(static_cast<int>(a), reinterpret_cast<sockaddr*>(b), reinterpret_cast<socklen_t*>(c)); });
    case SYS_accept4:
      return not_cancelled([&] {
        return accept4(static_cast<int>(a), reinterpret_cast<sockaddr*>(b), reinterpret_cast<socklen_t*>(c), static_cast<int>(d));
      });
    case SYS_connect:
      return not_cancelled([&] { return connect(static_cast<int>(a), reinterpret_cast<sockaddr*>(b), static_cast<socklen_t>(c)); });
    case SYS_recvmmsg:
      return not_cancelled([&] {
        return recvmmsg(static_cast<int>(a), reinterpret_cast<mmsghdr*>(b), static_cast<unsigned>(c), static_cast<int>(d), reinterpret_cast<timespec*>(e));
      });
    case SYS_sendmmsg:
      return not_cancelled([&] { return sendmmsg(static_cast<int>(a), reinterpret_cast<mmsghdr*>(b), static_cast<unsigned>(c), static_cast<int>(d)); });
    case SYS_sendfile:
      return as_kernel(sendfile(static_cast<int>(a), static_cast<int>(b), reinterpret_cast<off_t*>(c), static_cast<size_t>(d)));
    case SYS_splice:
      return not_cancelled([&] {
        return splice(static_cast<int>(a), reinterpret_cast<off64_t*>(b), static_cast<int>(c), reinterpret_cast<off64_t*>(d), static_cast<size_t>(e),
                      static_cast<unsigned>(f));
      });
    case SYS_tee:
      return not_cancelled([&] { return tee(static_cast<int>(a), static_cast<int>(b), static_cast<size_t>(c), static_cast<unsigned>(d)); });
#ifdef SYS_poll
    case SYS_poll:
      return not_cancelled([&] { return poll(reinterpret_cast<pollfd*>(a), static_cast<nfds_t>(b), static_cast<int>(c)); });
    case SYS_epoll_wait:
      return not_cancelled([&] { return epoll_wait(static_cast<int>(a), reinterpret_cast<epoll_event*>(b), static_cast<int>(c), static_cast<int>(d)); });
#endif
    case SYS_epoll_pwait: {
      sigset_t set;
      if (long error = copy_mask(e, static_cast<size_t>(f), set)) return error;
      return not_cancelled([&] {
        return epoll_pwait(static_cast<int>(a), reinterpret_cast<epoll_event*>(b), static_cast<int>(c), static_cast<int>(d), e ? &set : nullptr);
      });
    }
    case SYS_ppoll: {
      Remaining time(c);
      sigset_t set;
      if (long error = time.error() ? time.error() : copy_mask(d, static_cast<size_t>(e), set)) return error;
      return not_cancelled([&] { return ppoll(reinterpret_cast<pollfd*>(a), static_cast<nfds_t>(b), time.get(), d ? &set : nullptr); });
    }
    case SYS_pselect6: {
      struct {
        long mask;
        size_t size;
      } last{};
      Remaining time(e);
      sigset_t set;
      if (f && !copy_user(&last, reinterpret_cast<decltype(last)*>(f))) return -EFAULT;
      if (long error = time.error() ? time.error() : copy_mask(last.mask, last.size, set)) return error;
      return not_cancelled([&] {
        return pselect(static_cast<int>(a), reinterpret_cast<fd_set*>(b), reinterpret_cast<fd_set*>(c), reinterpret_cast<fd_set*>(d), time.get(),
                       last.mask ? &set : nullptr);
      });
    }
    case kEpollPwait2: {
      // Where the kernel has no such call, or a filter refuses it, the answer is theirs.
      if (long known = program_syscall(nr, -1); known != -EINVAL && known != -EBADF) return known;
      sigset_t set;
      if (long error = copy_mask(e, static_cast<size_t>(f), set)) return error;
      return not_cancelled([&] {
        return epoll_pwait2(static_cast<int>(a), reinterpret_cast<epoll_event*>(b), static_cast<int>(c), reinterpret_cast<timespec*>(d), e ? &set : nullptr);
      });
    }
    case SYS_wait4:
      return not_cancelled([&] { return wait4(static_cast<pid_t>(a), reinterpret_cast<int*>(b), static_cast<int>(c), reinterpret_cast<struct rusage*>(d)); });
    case SYS_flock:
      return as_kernel(flock(static_cast<int>(a), static_cast<int>(b)));
    case SYS_pread64:
      return not_cancelled([&] { return pread64(static_cast<int>(a), reinterpret_cast<void*>(b), static_cast<size_t>(c), d); });
    case SYS_fsync:
      return not_cancelled([&] { return fsync(static_cast<int>(a)); });
    case SYS_fdatasync:
      return not_cancelled([&] { return fdatasync(static_cast<int>(a)); });
    case SYS_close:
      return not_cancelled([&] { return close(static_cast<int>(a)); });
    case SYS_close_range:
      return as_kernel(close_range(static_cast<unsigned>(a), static_cast<unsigned>(b), static_cast<int>(c)));
#ifdef SYS_dup2
    case SYS_dup2:
      return as_kernel(dup2(static_cast<int>(a), static_cast<int>(b)));
#endif
    case SYS_dup3:
      return as_kernel(dup3(static_cast<int>(a), static_cast<int>(b), static_cast<int>(c)));
    case SYS_fcntl:
      return as_kernel(fcntl(static_cast<int>(a), static_cast<int>(b), c));
    case SYS_ioctl:
      return as_kernel(ioctl(static_cast<int>(a), static_cast<unsigned long>(b), c));
    case SYS_shutdown:
      return as_kernel(shutdown(static_cast<int>(a), static_cast<int>(b)));
    case SYS_setsockopt:
      return as_kernel(setsockopt(static_cast<int>(a), static_cast<int>(b), static_cast<int>(c), reinterpret_cast<void*>(d), static_cast<socklen_t>(e)));
    case SYS_nanosleep:
      return sleep_here(CLOCK_MONOTONIC, 0, reinterpret_cast<timespec*>(a), reinterpret_cast<timespec*>(b));
    case SYS_clock_nanosleep:
      return sleep_here(static_cast<clockid_t>(a), static_cast<int>(b), reinterpret_cast<timespec*>(c), reinterpret_cast<timespec*>(d));
    case SYS_clock_gettime: {
      timespec now;
      FiberRecord* owner = owner_of_clock(static_cast<clockid_t>(a));
      if (!owner) return program_syscall(nr, a, b);
      clock_gettime(static_cast<clockid_t>(a), &now);
      return copy_user(reinterpret_cast<timespec*>(b), &now) ? 0 : -EFAULT;
    }
    case SYS_clock_getres:
      return program_syscall(nr, owner_of_clock(static_cast<clockid_t>(a)) ? CLOCK_THREAD_CPUTIME_ID : a, b);
    case SYS_getrusage: {
      if (a != RUSAGE_THREAD) return program_syscall(nr, a, b);
      struct rusage usage;
      getrusage(RUSAGE_THREAD, &usage);
      return copy_user(reinterpret_cast<struct rusage*>(b), &usage) ? 0 : -EFAULT;
    }
    case SYS_timer_create:
      return timer_here(static_cast<clockid_t>(a), reinterpret_cast<struct sigevent*>(b), reinterpret_cast<int*>(c));
    case SYS_timer_delete:
      return as_kernel(timer_delete(reinterpret_cast<timer_t>(static_cast<intptr_t>(static_cast<int>(a)))));
    case SYS_prctl:
      return as_kernel(prctl(static_cast<int>(a), b, c, d, e));
#ifdef SYS_pause
    case SYS_pause:
    {
      NotCancelled not_cancelled;
      return as_kernel(pause());
    }
#endif
    case SYS_rt_sigsuspend: {
      NotCancelled not_cancelled;
      uint64_t mask;
      sigset_t set;
      if (b != sizeof mask) return -EINVAL;
      if (!copy_user(&mask, reinterpret_cast<uint64_t*>(a))) return -EFAULT;
      memcpy(&set, &mask, sizeof mask);
      return as_kernel(sigsuspend(&set));
    }
    case SYS_rt_sigtimedwait: {
      NotCancelled not_cancelled;
      uint64_t mask;
      sigset_t set;
      timespec t;
      siginfo_t info;
      if (d != sizeof mask) return -EINVAL;
      if (!copy_user(&mask, reinterpret_cast<uint64_t*>(a)) || (c && !copy_user(&t, reinterpret_cast<timespec*>(c)))) return -EFAULT;
      memcpy(&set, &mask, sizeof mask);
      long r = as_kernel(sigtimedwait(&set, &info, c ? &t : nullptr));
      return r > 0 && b && !copy_user(reinterpret_cast<siginfo_t*>(b), &info) ? -EFAULT : r;
    }
    case SYS_sched_setaffinity:
      return as_kernel(sched_setaffinity(static_cast<pid_t>(a), static_cast<size_t>(b), reinterpret_cast<cpu_set_t*>(c)));
    case SYS_sched_getaffinity: {
      // The kernel's tells how much it wrote.
      long n = program_syscall(SYS_sched_getaffinity, 0, b, c);
      if (n < 0) return n;
      long r = as_kernel(sched_getaffinity(static_cast<pid_t>(a), static_cast<size_t>(b), reinterpret_cast<cpu_set_t*>(c)));
      return r < 0 ? r : n;
    }
    case SYS_sched_setscheduler:
      return as_kernel(sched_setscheduler(static_cast<pid_t>(a), static_cast<int>(b), reinterpret_cast<sched_param*>(c)));
    case SYS_sched_getscheduler:
      return as_kernel(sched_getscheduler(static_cast<pid_t>(a)));
    case SYS_sched_setparam:
      return as_kernel(sched_setparam(static_cast<pid_t>(a), reinterpret_cast<sched_param*>(b)));
    case SYS_sched_getparam:
      return as_kernel(sched_getparam(static_cast<pid_t>(a), reinterpret_cast<sched_param*>(b)));
    case SYS_sched_rr_get_interval: {
      timespec t;
      if (long r = as_kernel(sched_rr_get_interval(static_cast<pid_t>(a), &t))) return r;
      return copy_user(reinterpret_cast<timespec*>(b), &t) ? 0 : -EFAULT;
    }
    case SYS_sched_setattr:
      return as_kernel(sched_setattr(static_cast<pid_t>(a), reinterpret_cast<sched_attr*>(b), static_cast<unsigned>(c)));
    case SYS_sched_getattr:
      return as_kernel(sched_getattr(static_cast<pid_t>(a), reinterpret_cast<sched_attr*>(b), static_cast<unsigned>(c), static_cast<unsigned>(d)));
    case SYS_setpriority:
      return as_kernel(setpriority(static_cast<__priority_which_t>(a), static_cast<id_t>(b), static_cast<int>(c)));
    case SYS_getpriority:
      errno = 0;
      if (int p = getpriority(static_cast<__priority_which_t>(a), static_cast<id_t>(b)); p != -1 || errno == 0) return 20 - p;  // the kernel's form
      return -errno;
#ifdef SYS_fork
    case SYS_fork:
    case SYS_vfork:  // its child cannot share a stack with a function that has returned
      return fork_by(SYS_fork, 0, 0, 0, 0, 0);
#endif
#ifdef SYS_arch_prctl
    case SYS_arch_prctl: {
      constexpr long kSetGs = 0x1001, kSetFs = 0x1002, kSetCpuid = 0x1012;  // ARCH_…
      if (a == kSetFs) return -EPERM;  // the next switch would lose it, and all of libc before
      if (a == kSetGs || a == kSetCpuid)
        if (int error = own_kernel_thread()) return -error;
      return program_syscall(nr, a, b);
    }
#endif
    case SYS_clone: {
      constexpr long kVm = 0x100;
      if (a & kVm) return -ENOSYS;  // a thread or half a process on memory that the library manages
      return fork_by(SYS_clone, a, b, c, d, e);
    }
#ifdef SYS_clone3
    case SYS_clone3:
      return -ENOSYS;  // callers fall back to clone
#endif
    // A thread's id names its process here.
    case SYS_getsid:
    case SYS_getpgid:
    case SYS_prlimit64:
    case SYS_process_vm_readv:
    case SYS_process_vm_writev:
    case SYS_move_pages:
    case SYS_migrate_pages:
      return plain_call(nr, scheduled_fiber(static_cast<int>(a)) ? raw_syscall(SYS_getpid) : a, b, c, d, e, f);
    case SYS_ioprio_get:
    case SYS_ioprio_set: {
      constexpr long kProcess = 1;  // IOPRIO_WHO_PROCESS, which is a thread
      FiberRecord* of = a == kProcess ? b ? scheduled_fiber(static_cast<int>(b)) : me : nullptr;
      if (!of) return plain_call(nr, a, b, c, d, e, f);
      if (nr == SYS_ioprio_set)
        if (int error = of == me ? own_kernel_thread() : sched_bind(of)) return -error;
      Busy busy;
      Worker* own = of->bound.load(std::memory_order_acquire);
      return program_syscall(nr, kProcess, of != me && own ? own->tid : 0, c);
    }
    default:
      if (call_is_of_thread(nr, b))
        if (int error = own_kernel_thread()) return -error;
      return plain_call(nr, a, b, c, d, e, f);
  }
}

long set_filter(long nr, long a, long b, long c, long d, long e, long f) {
  filtered.store(true, std::memory_order_relaxed);
  if (call_is_of_thread(nr, b) || nr == SYS_prctl)
    if (int error = own_kernel_thread()) return -error;
  bool has_program = nr == SYS_seccomp ? a == SECCOMP_SET_MODE_FILTER : b == SECCOMP_MODE_FILTER;
  if (!has_program) return program_syscall(nr, a, b, c, d, e, f);
  FilterForKernel filter(reinterpret_cast<void*>(c));
  return program_syscall(nr, a, b, arg(filter.program()), d, e, f);
}

}  // namespace

void clear_named_word() {
  uint32_t* word = named_word;
  if (!word) return;
  named_word = nullptr;
  uint32_t zero = 0;
  copy_user(word, &zero);
  raw_syscall(SYS_futex, arg(word), FUTEX_WAKE, 1);  // as the kernel does, for those who wait as for a shared one
}

long syscall_of_fiber(long nr, long a, long b, long c, long d, long e, long f) {
  FiberRecord* me = tls_current;
  bool fiber = me && sched_started() && !me->kernel;
  // Futexes are one and the same for all threads of the process.
  if (nr == SYS_clone && a & CLONE_VM && !(a & CLONE_THREAD)) poll_memory_shared();
  bool sets_filter = (nr == SYS_seccomp && a <= SECCOMP_SET_MODE_FILTER) || (nr == SYS_prctl && a == PR_SET_SECCOMP);
  if (__builtin_expect(sets_filter, 0)) return set_filter(nr, a, b, c, d, e, f);
  bool ours = (fiber || (nr == SYS_futex && sched_started())) && !(nr != SYS_futex && in_vfork_child());
  return ours ? in_fiber(nr, a, b, c, d, e, f) : program_syscall(nr, a, b, c, d, e, f);
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
