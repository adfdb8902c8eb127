// Signals that are pending, whose they are, and how those are told; the calls that send them.
#include <errno.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "sched/memory/block.h"
#include "shim/export.h"
#include "shim/own_thread.h"
#include "shim/real.h"
#include "shim/scheduling.h"
#include "shim/signal_frame.h"

namespace fiberthread {
namespace signals {

PendingQueue process_queue;

namespace {

uid_t own_user() {
  long r = raw_syscall(SYS_getuid);
  return static_cast<uid_t>(r >= 0 ? r : static_cast<long>(getauxval(AT_UID)));  // if a filter does not let us ask
}

Pending* free_pending = nullptr;
std::atomic<uint64_t> pending_count{0};  // written under the lock

void put_pending(Pending* p) {  // Locked
  p->next = free_pending;
  free_pending = p;
  pending_count.store(pending_count.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
}

// As in the kernel, which counts its own: what real-time signals of threads need room for.
bool room_for_pending() {
  uint64_t limit[2];
  return raw_syscall(SYS_prlimit64, 0, RLIMIT_SIGPENDING, 0, arg(limit)) != 0 || pending_count.load(std::memory_order_relaxed) < limit[0];
}

Pending* new_pending() {  // Locked
  if (!free_pending) {
    constexpr size_t kSize = 64 * 1024;
    long mem = raw_syscall(SYS_mmap, 0, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mem < 0 && mem > -4096) return nullptr;
    auto* p = reinterpret_cast<Pending*>(mem);
    for (size_t i = 0; i < kSize / sizeof(Pending); i++) {
      p[i].next = free_pending;
      free_pending = &p[i];
    }
  }
  Pending* p = free_pending;
  free_pending = p->next;
  pending_count.store(pending_count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return p;
}

void add(PendingQueue& q, Pending* p) {  // Locked
  p->next = nullptr;
  Pending** end = &q.first;
  while (*end) end = &(*end)->next;
  *end = p;
  q.bits.fetch_or(bit(p->info.si_signo), std::memory_order_seq_cst);
}

void move(PendingQueue& from, PendingQueue& to, int sig) {  // Locked
  for (Pending** p = &from.first; *p;) {
    Pending* moved = *p;
    if (moved->info.si_signo != sig) {
      p = &moved->next;
      continue;
    }
    *p = moved->next;
    add(to, moved);
  }
  from.bits.fetch_and(~bit(sig), std::memory_order_relaxed);
}

// The lowest signal of the queue that is in `wanted`, the first of its kind, taken out.
bool take(PendingQueue& q, uint64_t wanted, siginfo_t* out) {
  if (!(q.bits.load(std::memory_order_seq_cst) & wanted)) return false;
  Locked locked;
  wanted &= q.bits.load(std::memory_order_relaxed);
  wanted &= -wanted;
  for (Pending** p = &q.first; *p; p = &(*p)->next) {
    Pending* found = *p;
    int sig = found->info.si_signo;
    if (!(bit(sig) & wanted)) continue;
    *out = found->info;
    *p = found->next;
    put_pending(found);
    bool more = false;
    for (Pending* r = q.first; r; r = r->next) more |= r->info.si_signo == sig;
    if (!more) q.bits.fetch_and(~bit(sig), std::memory_order_relaxed);
    return true;
  }
  return false;
}

// What nobody has any more, in order.
void give_all(Pending* p, bool by_sysmon) {
  while (p) {
    Pending* next = p->next;
    give(pick_target(nullptr, p->info.si_signo), p->info, by_sysmon);
    Locked locked;
    put_pending(p);
    p = next;
  }
}

// What it has blocked and does not wait for.
uint64_t refused_by(FiberRecord* f) { return mask_of(f) & ~state_of(f).waited_for.load(std::memory_order_seq_cst); }

bool alive(FiberRecord* f) {
  return f->valid.load(std::memory_order_acquire) && !f->done.load(std::memory_order_relaxed) && !state_of(f).ended;
}

}  // namespace

void forget_pending() { pending_count.store(0); }

bool take_any(FiberRecord* me, uint64_t wanted, siginfo_t* out) {
  return take(state_of(me).queue, wanted, out) || take(process_queue, wanted, out);
}

bool pending_for(FiberRecord* me, uint64_t wanted) {
  return (state_of(me).queue.bits.load(std::memory_order_seq_cst) | process_queue.bits.load(std::memory_order_seq_cst)) & wanted;
}

FiberRecord* pick_target(FiberRecord* me, int sig) {
  // As in the kernel: main first, be it in sigwait. Others who are may come after those that have not blocked it.
  if (alive(main_fiber) && !(refused_by(main_fiber) & bit(sig))) return main_fiber;
  if (me && !me->kernel && !(mask_of(me) & bit(sig)) && alive(me)) return me;
  struct Search {
    uint64_t b;
    FiberRecord* found;
  } search{bit(sig), nullptr};
  block_each(
      [](FiberRecord* f, void* p) {
        auto* s = static_cast<Search*>(p);
        if (!f->tcb || !alive(f) || mask_of(f) & s->b) return true;
        s->found = f;
        return false;
      },
      &search);
  return search.found;
}

bool record(FiberRecord*& f, const siginfo_t& info, bool for_process) {
  Locked locked;
  while (f) {
    ThreadSignals& s = state_of(f);
    // Marked before looked at, as signal_thread_ends() does it the other way round: one of us sees the other.
    s.arriving.fetch_add(1, std::memory_order_seq_cst);
    if (!s.ended.load(std::memory_order_seq_cst)) break;
    if (!for_process) return false;
    f = pick_target(nullptr, info.si_signo);
  }
  PendingQueue& q = f ? state_of(f).queue : process_queue;
  // Those before it that nobody took go to the same fiber, or they would come after it.
  if (f && for_process && process_queue.bits.load(std::memory_order_relaxed) & bit(info.si_signo)) move(process_queue, q, info.si_signo);
  // What was sent to the thread and what was sent to the process are counted apart, as in the kernel.
  if (info.si_signo < SIGRTMIN && q.bits.load(std::memory_order_relaxed) & bit(info.si_signo))
    for (Pending* p = q.first; p; p = p->next)
      if (p->info.si_signo == info.si_signo && p->for_process == for_process) return false;
  Pending* p = new_pending();
  if (!p) return false;
  p->info = info;
  p->for_process = for_process;
  add(q, p);
  return true;
}

// ---- waking whom a signal was recorded for ----

namespace {
std::atomic<uint64_t> ever_poked{0};
char poke_mark;  // its address in si_value says that a signal only means "look at what is pending"
}  // namespace

bool may_be_poked(int sig) { return ever_poked.load(std::memory_order_relaxed) & bit(sig); }

bool is_poke(const siginfo_t& info) { return info.si_code == SI_QUEUE && info.si_value.sival_ptr == &poke_mark; }

void tell(FiberRecord* f, int sig) {
  interrupt(f, kInterruptSafePoint);
  if (f->kernel || f->state.load(std::memory_order_seq_cst) != State::Running) return;
  // It may be in a system call. If it is not there any more it has looked since.
  Worker* w = __atomic_load_n(&f->worker, __ATOMIC_RELAXED);
  if (!w) return;
  // Whoever takes the handler away meanwhile sees the bit, or we see that it is gone: a poke would have the default action.
  if (!(ever_poked.load(std::memory_order_relaxed) & bit(sig))) ever_poked.fetch_or(bit(sig), std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (Action a = action_of(sig); !handled(a)) {
    if (a.handler == reinterpret_cast<void*>(SIG_DFL) && pending_for(f, bit(sig) & ~mask_of(f))) default_action(sig);
    return;
  }
  siginfo_t info;
  memset(&info, 0, sizeof info);
  info.si_signo = sig;
  info.si_code = SI_QUEUE;
  info.si_value.sival_ptr = &poke_mark;
  w->poked.fetch_or(bit(sig), std::memory_order_relaxed);  // before: who finds it pending sees this, by the kernel's lock
  raw_syscall(SYS_rt_tgsigqueueinfo, process, w->tid, sig, arg(&info));
}

// A poke that comes when another fiber runs there, or the one meant has blocked the signal since, stays pending.
uint64_t pending_in_kernel(FiberRecord* me) {
  Busy busy;
  uint64_t pending = 0;
  raw_syscall(SYS_rt_sigpending, arg(&pending), 8);
  std::atomic<uint64_t>& poked = me->worker->poked;
  for (uint64_t doubtful = pending & poked.load(std::memory_order_relaxed); doubtful; doubtful &= doubtful - 1) {
    uint64_t one = doubtful & -doubtful;
    poked.fetch_and(~one, std::memory_order_relaxed);  // before the look: who sends another says so again
    pending &= ~one;
    // Nobody can say which it is without taking it out.
    siginfo_t info;
    timespec at_once{};
    while (raw_syscall(SYS_rt_sigtimedwait, arg(&one), arg(&info), arg(&at_once), 8) > 0) {
      if (is_poke(info)) continue;
      if (sent_to_thread(info)) record(me, info, false);
      else hand_out(info);
    }
  }
  return pending;
}

namespace {
struct Told {
  std::atomic<FiberRecord*> fiber{nullptr};
  std::atomic<int> sig{0};
};
Told to_tell[32];
}  // namespace

void tell_by_sysmon(FiberRecord* f, int sig) {
  f->interrupts.fetch_or(kInterruptSafePoint, std::memory_order_seq_cst);
  for (;;) {
    for (auto& t : to_tell) {
      FiberRecord* none = nullptr;
      if (!t.fiber.compare_exchange_strong(none, f, std::memory_order_acq_rel)) continue;
      t.sig.store(sig, std::memory_order_release);
      sysmon_call();
      return;
    }
    sysmon_call();
    if (static_cast<int>(raw_syscall(SYS_gettid)) == sysmon_tid()) return;  // full, with 32 to wake: one of them will do
  }
}

void on_sysmon() {
  for (auto& t : to_tell) {
    if (!t.fiber.load(std::memory_order_relaxed)) continue;
    int sig = t.sig.exchange(0, std::memory_order_acquire);
    if (!sig) continue;  // being filled in; sysmon is called again after that
    FiberRecord* f = t.fiber.exchange(nullptr, std::memory_order_acq_rel);
    tell(f, sig);
  }
}

void forget_tellings() {
  for (auto& t : to_tell) {
    t.fiber.store(nullptr);
    t.sig.store(0);
  }
}

namespace {
void make_known(FiberRecord* to, int sig, bool by_sysmon) {
  // Looked at again: somebody may have unblocked it meanwhile.
  if (!to) to = pick_target(nullptr, sig);
  if (!to) {
    wake_waiter(sig, by_sysmon);
    return;
  }
  if (by_sysmon) tell_by_sysmon(to, sig);
  else tell(to, sig);
  give_away(to, bit(sig), by_sysmon);  // or have blocked it
}
}  // namespace

void give(FiberRecord* to, const siginfo_t& info, bool by_sysmon) {
  if (record(to, info, true)) make_known(to, info.si_signo, by_sysmon);
}

void give_away(FiberRecord* f, uint64_t blocked, bool by_sysmon) {
  PendingQueue& q = state_of(f).queue;
  blocked &= refused_by(f);
  uint64_t nobodys = process_queue.bits.load(std::memory_order_seq_cst) & blocked;
  if (__builtin_expect(!(q.bits.load(std::memory_order_seq_cst) & blocked) && !nobodys, 1)) return;
  Pending *given = nullptr, **end = &given;
  {
    Locked locked;
    uint64_t left = 0;
    for (Pending** p = &q.first; *p;) {
      Pending* one = *p;
      if (one->for_process && blocked & bit(one->info.si_signo)) {
        *p = one->next;
        one->next = nullptr;
        *end = one;
        end = &one->next;
      } else {
        left |= bit(one->info.si_signo);
        p = &one->next;
      }
    }
    q.bits.store(left, std::memory_order_relaxed);
  }
  give_all(given, by_sysmon);
  for (; nobodys; nobodys &= nobodys - 1) make_known(nullptr, __builtin_ctzll(nobodys) + 1, by_sysmon);
}

void drop_pending(int sig) {
  static constexpr auto drop = [](PendingQueue& q, int sig) {
    if (!(q.bits.load(std::memory_order_seq_cst) & bit(sig))) return;
    Busy busy;
    Locked locked;
    for (Pending** p = &q.first; *p;) {
      Pending* one = *p;
      if (one->info.si_signo != sig) {
        p = &one->next;
        continue;
      }
      *p = one->next;
      put_pending(one);
    }
    q.bits.fetch_and(~bit(sig), std::memory_order_relaxed);
  };
  auto visit = [](FiberRecord* f, void* data) {
    drop(state_of(f).queue, *static_cast<int*>(data));
    return true;
  };
  drop(process_queue, sig);
  visit(main_fiber, &sig);
  block_each(visit, &sig);
  kernel_record_each(visit, &sig);
}

}  // namespace signals

using namespace signals;

void signal_thread_ends(FiberRecord* me) {
  forget_alternate();
  ThreadSignals& s = state_of(me);
  s.ended.exchange(true, std::memory_order_seq_cst);
  if (s.arriving.load(std::memory_order_seq_cst) == 0) return;  // the usual end, without a system call
  Pending *homeless = nullptr, **end = &homeless;
  {
    Locked locked;
    for (Pending* p = s.queue.first; p;) {
      Pending* next = p->next;
      if (p->for_process) {
        p->next = nullptr;
        *end = p;
        end = &p->next;
      } else {
        put_pending(p);
      }
      p = next;
    }
    s.queue.first = nullptr;
    s.queue.bits.store(0, std::memory_order_relaxed);
  }
  give_all(homeless, false);
}

namespace {

std::atomic<uint64_t> signalfd_shows{0};  // what any of the program's signalfds has asked for

// For a signalfd only the kernel can keep what a thread blocks. It does for threads with kernel threads of their own, and who sends to
// himself gets one.
bool keep_in_kernel(FiberRecord* to, const siginfo_t& info) {
  if (to == tls_current && tls_busy == 0) own_kernel_thread();
  Busy busy;
  Worker* own = to->bound.load(std::memory_order_acquire);
  if (!own || own->cord || __atomic_load_n(&to->worker, __ATOMIC_RELAXED) != own || own->bound != to) return false;
  if (to == tls_current) sched_apply_mask();
  else if (info.si_code == SI_TKILL) return raw_syscall(SYS_tgkill, process, own->tid, info.si_signo) == 0;
  return raw_syscall(SYS_rt_tgsigqueueinfo, process, own->tid, info.si_signo, arg(&info)) == 0;
}

}  // namespace

int signal_send(FiberRecord* to, int sig, const siginfo_t* given) {
  if (sig < 0 || sig > kSignals || sig == 32 || sig == 33) return EINVAL;
  if (sig == 0 || to->done.load(std::memory_order_acquire)) return 0;
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
  if (to->kernel && !given) return static_cast<int>(-program_syscall(SYS_tgkill, process, to->id, sig));
  if (to->kernel) return static_cast<int>(-program_syscall(SYS_rt_tgsigqueueinfo, process, to->id, sig, arg(&info)));
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
  if (sig >= 32 && !room_for_pending()) return EAGAIN;
  bool kept = __builtin_expect(blocked && signalfd_shows.load(std::memory_order_relaxed) & bit(sig), 0) && keep_in_kernel(to, info);
  if (kept && to == tls_current) return 0;
  if (to == tls_current) {
    Busy busy;
    record(to, info, false);
    if (!blocked) to->interrupts.fetch_or(kInterruptSafePoint, std::memory_order_relaxed);
    return 0;
  }
  if (!kept && !record(to, info, false)) return 0;
  // Looked at again: it may have been unblocked, or waited for, meanwhile.
  Busy busy;
  if (!(mask_of(to) & bit(sig))) tell(to, sig);
  else if (state_of(to).waited_for.load(std::memory_order_seq_cst) & bit(sig)) unpark(to);
  return 0;
}

int thread_kill_tid(int tgid, int tid, int sig, const siginfo_t* info) {
  if (tid <= 0 || (tgid != -1 && tgid <= 0)) return EINVAL;
  int pid = static_cast<int>(raw_syscall(SYS_getpid));
  if (sched_started() && (tgid == pid || tgid == -1) && !in_vfork_child()) {
    FiberRecord* f = fiber_of_tid(tid);
    if (f && !f->kernel) return f->done.load(std::memory_order_acquire) ? ESRCH : signal_send(f, sig, info);
  }
  long r;
  if (info) r = tgid == -1 ? raw_syscall(SYS_rt_sigqueueinfo, tid, sig, arg(info)) : raw_syscall(SYS_rt_tgsigqueueinfo, tgid, tid, sig, arg(info));
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
  if (raw_syscall(SYS_rt_sigtimedwait, arg(&one), arg(&info), arg(&at_once), 8) == SIGPIPE) record(me, info, false);
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
  if (f->done.load(std::memory_order_acquire)) return ESRCH;  // unlike pthread_kill()
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

// To ourselves: a thread that takes it is found here, and if that is the caller it runs before we return, as POSIX and the
// kernel have it.
namespace {
bool sent_to_ourselves(pid_t pid, int sig, int code, sigval value) {
  FiberRecord* me = sig > 0 && sig <= kSignals ? ours() : nullptr;
  if (!me || pid != process || !handled(action_of(sig)) || bit(sig) & kNeverBlocked) return false;
  FiberRecord* to = pick_target(me, sig);
  if (!to) return false;
  siginfo_t info;
  memset(&info, 0, sizeof info);
  info.si_signo = sig;
  info.si_code = code;
  info.si_pid = process;
  info.si_uid = own_user();
  if (code == SI_QUEUE) info.si_value = value;
  Busy busy;
  if (to != me) give(to, info, false);
  else if (record(to, info, true)) me->interrupts.fetch_or(kInterruptSafePoint, std::memory_order_relaxed);
  return true;
}
}  // namespace

FIBERTHREAD_EXPORT int signalfd(int fd, const sigset_t* set, int flags) noexcept {
  int r = REAL(signalfd)(fd, set, flags);
  if (r >= 0) signalfd_shows.fetch_or(words(*set), std::memory_order_relaxed);
  return r;
}

// A thread's id names its process.
FIBERTHREAD_EXPORT int kill(pid_t pid, int sig) noexcept {
  if (pid >= 1 << 22 && ours() && fiber_of_tid(pid)) pid = process;
  if (sent_to_ourselves(pid, sig, SI_USER, {})) return 0;
  return static_cast<int>(with_errno(raw_syscall(SYS_kill, pid, sig)));
}

FIBERTHREAD_EXPORT int sigqueue(pid_t pid, int sig, const union sigval value) noexcept {
  if (sent_to_ourselves(pid, sig, SI_QUEUE, value)) return 0;
  FiberRecord* f = pid >= 1 << 22 && sched_started() && !in_vfork_child() ? fiber_of_tid(pid) : nullptr;
  if (f && !f->kernel) pid = process;  // as kill()
  return REAL(sigqueue)(pid, sig, value);
}

FIBERTHREAD_EXPORT int tgkill(pid_t tgid, pid_t tid, int sig) {  // declared without noexcept
  return static_cast<int>(with_errno(-thread_kill_tid(tgid, tid, sig, nullptr)));
}
