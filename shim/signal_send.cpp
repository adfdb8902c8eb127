// SPDX-License-Identifier: MIT
// The calls that send signals.
#include <errno.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "sched/explore/explore.h"
#include "sched/poller.h"
#include "sched/worker.h"
#include "shim/export.h"
#include "shim/own_thread.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/signal_parts.h"
#include "shim/thread_names.h"

namespace fiberthread {

using namespace signals;

std::atomic<uint64_t> signalfd_shows{0};

namespace {

uid_t own_user() {
  long r = raw_syscall(SYS_getuid);
  return static_cast<uid_t>(r >= 0 ? r : static_cast<long>(getauxval(AT_UID)));  // a filter may refuse the call
}

// Stands in a siginfo_t where no field is. Linux carries 48 bytes of what a process queues, the fields for negative codes end before the 40th,
// and a signalfd shows fields only. The thread's number is in it because a program may send on what it got.
struct KeptMark {
  uint32_t made_here;
  int tid;
};
constexpr size_t kMarkAt = 40;
KeptMark mark_for(int tid) { return {static_cast<uint32_t>(reinterpret_cast<uintptr_t>(&signalfd_shows)), tid}; }

}  // namespace

namespace signals {

bool signalfd_may_show(uint64_t signals) { return signalfd_shows.load(std::memory_order_relaxed) & signals; }

bool queue_to_kernel_thread(int tid, const siginfo_t& info) {
  if (info.si_code == SI_TKILL) return raw_syscall(SYS_tgkill, process, tid, info.si_signo) == 0;
  siginfo_t marked = info;
  KeptMark mark = mark_for(tid);
  memcpy(reinterpret_cast<char*>(&marked) + kMarkAt, &mark, sizeof mark);
  return raw_syscall(SYS_rt_tgsigqueueinfo, process, tid, info.si_signo, arg(&marked)) == 0;
}

namespace {
bool keep_on(Worker* own, FiberRecord* to, const siginfo_t& info) {  // under SignalsGuard
  uint64_t one = bit(info.si_signo);
  bool first = !(state_of(to).kept.fetch_or(one, std::memory_order_relaxed) & one);
  // What is recorded came before what the kernel has.
  if (first && !move_to_kernel(to, one, own->thread.tid)) return false;
  return queue_to_kernel_thread(own->thread.tid, info);
}
bool is_kept(FiberRecord* to, int sig) { return (mask_of(to) | state_of(to).kept.load(std::memory_order_relaxed)) & bit(sig); }
}  // namespace

bool keep_in_kernel(FiberRecord* me, const siginfo_t& info) {
  Busy busy;
  Worker* own = sched_keep_bond(me);
  if (!own) return false;
  sched_apply_mask();
  SignalsGuard guard;
  return keep_on(own, me, info);
}

Sent send_beside_signalfd(FiberRecord* to, const siginfo_t& info) {
  int sig = info.si_signo;
  if (to == tls_current && tls_busy == 0 && is_kept(to, sig)) own_kernel_thread();
  Busy busy;
  for (;;) {
    bool kept = is_kept(to, sig);
    Worker* own = kept ? sched_keep_bond(to) : nullptr;
    if (own && to == tls_current) sched_apply_mask();
    SignalsGuard guard;  // as a whole before or after kept_have_come() and keep_recorded_in_kernel()
    if (!kept && is_kept(to, sig)) continue;
    if (own && keep_on(own, to, info)) return Sent::ToKernel;
    return record_locked(to, info, SentTo::Thread) ? Sent::Recorded : Sent::Nowhere;
  }
}

namespace {
// Records what the kernel keeps of these for the caller, behind what is recorded.
void take_kept(FiberRecord* me, uint64_t signals) {  // under SignalsGuard
  uint64_t pending = 0;
  if (raw_syscall(SYS_rt_sigpending, arg(&pending), 8) == 0) signals &= pending;
  for (uint64_t one; (one = signals & -signals); signals &= ~one) {
    siginfo_t info;
    timespec at_once{};
    while (pending_for_thread() & one && raw_syscall(SYS_rt_sigtimedwait, arg(&one), arg(&info), arg(&at_once), 8) > 0)
      if (!is_poke(info)) record_locked(me, info, SentTo::Thread);
  }
}
}  // namespace

void drop_pokes(FiberRecord* me, uint64_t signals) {
  Busy busy;
  Worker* w = me->run.worker;
  signals &= w->embedder.poked.load(std::memory_order_seq_cst);
  if (!signals) return;
  await_senders(w);
  w->embedder.poked.fetch_and(~signals, std::memory_order_relaxed);
  SignalsGuard guard;
  take_kept(me, signals);
}

bool keep_recorded_in_kernel(FiberRecord* f, uint64_t signals) {
  ThreadSignals& s = state_of(f);
  signals &= s.queue.bits.load(std::memory_order_relaxed);
  if (__builtin_expect(!signals || !signalfd_may_show(signals), 1)) return true;
  Busy busy;
  Worker* own = sched_keep_bond(f);
  if (!own) return false;
  SignalsGuard guard;
  signals &= signalfd_shows.load(std::memory_order_relaxed);
  if (f != tls_current) signals &= ~s.kept.load(std::memory_order_relaxed);  // the kernel may have some
  else take_kept(f, signals & s.kept.load(std::memory_order_relaxed));
  s.kept.fetch_or(signals, std::memory_order_relaxed);
  move_to_kernel(f, signals, own->thread.tid);
  return true;
}

bool kept_for_this_thread(const siginfo_t& info) {
  if (info.si_code >= 0) return false;
  KeptMark mark;
  memcpy(&mark, reinterpret_cast<const char*>(&info) + kMarkAt, sizeof mark);
  return mark.made_here == mark_for(0).made_here && mark.tid == raw_syscall(SYS_gettid);
}

void kept_have_come(FiberRecord* me) {
  uint64_t open = ~mask_of(me);
  if (__builtin_expect(!(state_of(me).kept.load(std::memory_order_relaxed) & open), 1)) return;
  Busy busy;
  if (me->run.worker != me->run.bound.load(std::memory_order_relaxed)) return;
  // What the kernel had for this thread came when it was told, and has been recorded. What it has now came under the lock's mask.
  SignalsGuard guard;
  uint64_t pending = 0;
  if (raw_syscall(SYS_rt_sigpending, arg(&pending), 8) == 0) state_of(me).kept.fetch_and(~(open & ~pending), std::memory_order_relaxed);
}

bool keep_in_kernel_for_process(const siginfo_t& info) {
  if (info.si_code == SI_USER && info.si_pid == process) return raw_syscall(SYS_kill, process, info.si_signo) == 0;
  return raw_syscall(SYS_rt_sigqueueinfo, process, info.si_signo, arg(&info)) == 0;
}

}  // namespace signals

bool signal_is_to_be_shown(FiberRecord* me) {
  return state_of(me).queue.bits.load(std::memory_order_seq_cst) & mask_of(me) & signalfd_shows.load(std::memory_order_relaxed);
}

bool signal_show_pending_slow() {
  FiberRecord* me = ours();
  if (!me || tls_busy || !signal_is_to_be_shown(me) || own_kernel_thread() != 0) return false;
  poll_release_epolls();
  keep_recorded_in_kernel(me, mask_of(me));
  return true;
}

int signal_send(FiberRecord* to, int sig, const siginfo_t* given) {
  if (sig < 0 || sig > kSignals || is_libcs_signal(sig)) return EINVAL;
  if (sig == 0 || to->join.done.load(std::memory_order_acquire)) return 0;
  siginfo_t info;
  if (given) {
    info = *given;
    info.si_signo = sig;
  } else {
    memset(&info, 0, sizeof info);
    info.si_signo = sig;
    info.si_code = SI_TKILL;
    info.si_pid = process;
    info.si_uid = own_user();
  }
  if (to->run.kernel && !given) return static_cast<int>(-program_syscall(SYS_tgkill, process, to->identity.id, sig));
  if (to->run.kernel) return static_cast<int>(-program_syscall(SYS_rt_tgsigqueueinfo, process, to->identity.id, sig, arg(&info)));
  if (sig == SIGKILL || sig == SIGSTOP) return static_cast<int>(-raw_syscall(SYS_kill, process, sig));
  Action a = action_of(sig);
  bool blocked = mask_of(to) & bit(sig);
  if (!blocked) {
    if (a.handler == reinterpret_cast<void*>(SIG_IGN)) return 0;
    if (a.handler == reinterpret_cast<void*>(SIG_DFL)) {
      Busy busy;
      default_action(sig);
      return 0;
    }
  }
  bool of_timer = given && given->si_code == SI_TIMER;  // timers have room for theirs
  if (sig >= kFirstQueued && !of_timer && !room_for_pending()) return EAGAIN;
  bool beside_signalfd = __builtin_expect(signalfd_may_show(bit(sig)), 0);
  Sent sent = beside_signalfd ? send_beside_signalfd(to, info) : record(to, info, SentTo::Thread) ? Sent::Recorded : Sent::Nowhere;
  if (to == tls_current) {
    Busy busy;  // its end runs the handler
    if (sent == Sent::Recorded && !blocked) to->run.interrupts.fetch_or(kInterruptSafePoint, std::memory_order_relaxed);
    return 0;
  }
  if (sent == Sent::Nowhere) return 0;
  // Looked at again, since the signal may have been unblocked, or waited for, meanwhile.
  Busy busy;
  if (!(mask_of(to) & bit(sig))) tell(to, sig, TellBy::Caller);
  else if (state_of(to).waited_for.load(std::memory_order_seq_cst) & bit(sig)) unpark(to);
  else if (beside_signalfd && sent == Sent::Recorded && !keep_recorded_in_kernel(to, bit(sig))) interrupt(to, kInterruptSafePoint);
  return 0;
}

int thread_kill_tid(int tgid, int tid, int sig, const siginfo_t* info) {
  if (tid <= 0 || (tgid != -1 && tgid <= 0)) return EINVAL;
  int pid = static_cast<int>(raw_syscall(SYS_getpid));
  if (sched_started() && (tgid == pid || tgid == -1) && !in_vfork_child()) {
    FiberRecord* f = fiber_of_tid(tid);
    if (f && !f->run.kernel) return f->join.done.load(std::memory_order_acquire) ? ESRCH : signal_send(f, sig, info);
  }
  long r;
  if (info)
    r = tgid == -1 ? raw_syscall(SYS_rt_sigqueueinfo, tid, sig, arg(info)) : raw_syscall(SYS_rt_tgsigqueueinfo, tgid, tid, sig, arg(info));
  else r = tgid == -1 ? raw_syscall(SYS_tkill, tid, sig) : raw_syscall(SYS_tgkill, tgid, tid, sig);
  return static_cast<int>(-r);
}

void signal_raise_pipe() {
  siginfo_t info;
  memset(&info, 0, sizeof info);
  info.si_signo = SIGPIPE;
  info.si_code = SI_USER;
  info.si_pid = process;
  info.si_uid = own_user();
  int error = errno;
  signal_send(self(), SIGPIPE, &info);
  errno = error;
}

void signal_take_pipe() {
  FiberRecord* me = ours();
  if (!me) return;
  Busy busy;
  uint64_t one = bit(SIGPIPE);
  if (!(mask_of(me) & one)) return;
  siginfo_t info;
  timespec at_once{};
  if (raw_syscall(SYS_rt_sigtimedwait, arg(&one), arg(&info), arg(&at_once), 8) == SIGPIPE) record(me, info, SentTo::Thread);
}

}  // namespace fiberthread

using namespace fiberthread;
using namespace fiberthread::signals;

FIBERTHREAD_EXPORT int pthread_kill(pthread_t t, int sig) noexcept {
  FiberRecord* f = sched_started() ? fiber_of(t) : nullptr;
  if (!f) return sched_started() && stale_handle(t) ? ESRCH : REAL(pthread_kill)(t, sig);
  return signal_send(f, sig, nullptr);
}

FIBERTHREAD_EXPORT int pthread_sigqueue(pthread_t t, int sig, const union sigval value) noexcept {
  FiberRecord* f = sched_started() ? fiber_of(t) : nullptr;
  if (!f) return sched_started() && stale_handle(t) ? ESRCH : REAL(pthread_sigqueue)(t, sig, value);
  if (f->join.done.load(std::memory_order_acquire)) return ESRCH;  // pthread_kill() says 0
  siginfo_t info;
  memset(&info, 0, sizeof info);
  info.si_code = SI_QUEUE;
  info.si_pid = process;
  info.si_uid = own_user();
  info.si_value = value;
  return signal_send(f, sig, &info);
}

FIBERTHREAD_EXPORT int raise(int sig) noexcept {
  FiberRecord* me = ours();
  if (!me) return REAL(raise)(sig);
  int e = signal_send(me, sig, nullptr);
  if (e == 0) return 0;
  errno = e;
  return -1;
}
FIBERTHREAD_ALIAS(gsignal, raise);

// Sends a signal to this process. A thread that takes it is found here. If that is the caller, it runs before this returns, as in POSIX and
// the kernel.
namespace {
bool sent_to_ourselves(pid_t pid, int sig, int code, sigval value) {
  FiberRecord* me = sig > 0 && sig <= kSignals ? ours() : nullptr;
  if (!me || pid != process || bit(sig) & kNeverBlocked) return false;
  // The listener would bring a signal that is waited for, at a time of its own. An explored process must not wait for that.
  bool waited_for = exploring && is_waited_for(sig);
  if (!waited_for && !handled(action_of(sig))) return false;
  FiberRecord* to = pick_target(me, sig);
  if (!to && !waited_for) return false;
  if (to && !handled(action_of(sig)) && !(state_of(to).waited_for.load(std::memory_order_relaxed) & bit(sig))) return false;
  siginfo_t info;
  memset(&info, 0, sizeof info);
  info.si_signo = sig;
  info.si_code = code;
  info.si_pid = process;
  info.si_uid = own_user();
  if (code == SI_QUEUE) info.si_value = value;
  Busy busy;
  if (to != me) give(to, info, TellBy::Caller);
  else if (record(to, info, SentTo::Process)) me->run.interrupts.fetch_or(kInterruptSafePoint, std::memory_order_relaxed);
  return true;
}
}  // namespace

FIBERTHREAD_EXPORT int signalfd(int fd, const sigset_t* set, int flags) noexcept {
  int r = REAL(signalfd)(fd, set, flags);
  if (r < 0) return r;
  signalfd_shows.fetch_or(words(*set), std::memory_order_relaxed);
  if (FiberRecord* me = ours()) await_unwanted(words(*set) & mask_of(me));
  return r;
}

// A thread's id stands for its process.
FIBERTHREAD_EXPORT int kill(pid_t pid, int sig) noexcept {
  if (pid >= 1 << 22 && ours() && fiber_of_tid(pid)) pid = process;
  if (sent_to_ourselves(pid, sig, SI_USER, {})) return 0;
  return static_cast<int>(with_errno(raw_syscall(SYS_kill, pid, sig)));
}

FIBERTHREAD_EXPORT int sigqueue(pid_t pid, int sig, const union sigval value) noexcept {
  if (sent_to_ourselves(pid, sig, SI_QUEUE, value)) return 0;
  FiberRecord* f = pid >= 1 << 22 && sched_started() && !in_vfork_child() ? fiber_of_tid(pid) : nullptr;
  if (f && !f->run.kernel) pid = process;  // as kill()
  return REAL(sigqueue)(pid, sig, value);
}

FIBERTHREAD_EXPORT int tgkill(pid_t tgid, pid_t tid, int sig) {  // declared without noexcept
  return static_cast<int>(with_errno(-thread_kill_tid(tgid, tid, sig, nullptr)));
}
