#include "shim/signal.h"

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <new>

#include "sched/preempt.h"
#include "sched/stack.h"
#include "sched/worker.h"
#include "shim/cancel.h"
#include "shim/clock.h"
#include "shim/export.h"
#include "shim/io.h"
#include "shim/real.h"
#include "shim/scheduling.h"
#include "shim/thread.h"
#include "shim/time.h"
#include "shim/user_memory.h"

// Of fortified programs; in no header.
extern "C" void __longjmp_chk(struct __jmp_buf_tag* env, int value) noexcept __attribute__((noreturn));

namespace fiberthread {
namespace {

constexpr int kSignals = 64;
constexpr uint64_t bit(int sig) { return uint64_t{1} << (sig - 1); }
// What nobody can block: the kernel's two, libc's two.
constexpr uint64_t kNeverBlocked = bit(SIGKILL) | bit(SIGSTOP) | bit(32) | bit(33);
constexpr uint64_t kFaults = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGSYS);
constexpr uint64_t kIgnoredByDefault = bit(SIGCHLD) | bit(SIGURG) | bit(SIGWINCH) | bit(SIGCONT);

uint64_t words(const sigset_t& set) {
  uint64_t w;
  memcpy(&w, &set, sizeof w);
  return w;
}
sigset_t as_set(uint64_t w) {
  sigset_t set;
  sigemptyset(&set);
  memcpy(&set, &w, sizeof w);
  return set;
}

// ---- all signals blocked, one lock: how everything below is kept consistent ----

SpinLock signals_lock;

class Locked {
 public:
  Locked() {
    uint64_t all = ~uint64_t{0};  // preemption too
    raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&all), arg(&old_), 8);
    signals_lock.lock();
  }
  ~Locked() {
    signals_lock.unlock();
    raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&old_), 0, 8);
  }

 private:
  uint64_t old_;
};

// ---- what the program asked for ----

struct Action {
  void* handler = nullptr;  // or SIG_DFL, SIG_IGN
  uint64_t mask = 0;
  int flags = 0;
};

struct Slot {
  std::atomic<uint32_t> version{0};  // odd while written
  Action action;
};
Slot actions[kSignals + 1];
std::atomic<bool> taken_over{false};
std::atomic<uint64_t> interrupting{0};  // siginterrupt()
int process = 0;                        // pid

Action action_of(int sig) {
  Slot& s = actions[sig];
  for (;;) {
    uint32_t v = s.version.load(std::memory_order_acquire);
    Action a = s.action;
    std::atomic_thread_fence(std::memory_order_acquire);
    // Whoever writes has all signals blocked, so this never waits for the thread that it interrupted.
    if (!(v & 1) && s.version.load(std::memory_order_relaxed) == v) return a;
  }
}

void set_action(int sig, const Action& a) {  // Locked
  Slot& s = actions[sig];
  s.version.fetch_add(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  s.action = a;
  s.version.fetch_add(1, std::memory_order_release);
}

bool handled(const Action& a) { return a.handler != reinterpret_cast<void*>(SIG_DFL) && a.handler != reinterpret_cast<void*>(SIG_IGN); }

void on_signal(int sig, siginfo_t* info, void* context);

// The kernel's side of an action.
void install(int sig, const Action& a) {
  struct sigaction k;
  memset(&k, 0, sizeof k);
  // Stack overflows are reported, so the kernel must come to us for SIGSEGV.
  if (handled(a) || (sig == SIGSEGV && a.handler == reinterpret_cast<void*>(SIG_DFL))) {
    k.sa_sigaction = on_signal;
    k.sa_mask = as_set(a.mask);
    k.sa_flags = (a.flags & (SA_RESTART | SA_NOCLDSTOP | SA_NOCLDWAIT | SA_NODEFER)) | SA_SIGINFO | SA_ONSTACK;
  } else {
    k.sa_handler = reinterpret_cast<sighandler_t>(a.handler);
    k.sa_flags = a.flags & (SA_NOCLDSTOP | SA_NOCLDWAIT);
  }
  REAL(sigaction)(sig, &k, nullptr);
}

// ---- pending signals ----

struct Pending {
  Pending* next;
  siginfo_t info;
  bool for_process;
};

struct PendingQueue {
  std::atomic<uint64_t> bits{0};
  Pending* first = nullptr;
};

// Of each fiber. Under the lock, but for `bits` (a hint then) and what is said to be its own.
struct ThreadSignals {
  PendingQueue queue;
  std::atomic<uint64_t> waited_for{0};  // by sigwait
  std::atomic<bool> ended{false};
  std::atomic<uint32_t> arriving{0};  // times that a signal was to be recorded here
  bool restarts = false;  // own: see signal_restarts()
};
ThreadSignals& state_of(Fiber* f) { return shim_share<ThreadSignals, 0, 96>(f); }

PendingQueue process_queue;  // for the process, when no thread takes them
Pending* free_pending = nullptr;

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
  return p;
}

void add(PendingQueue& q, Pending* p) {  // Locked
  p->next = nullptr;
  Pending** end = &q.first;
  while (*end) end = &(*end)->next;
  *end = p;
  q.bits.fetch_or(bit(p->info.si_signo), std::memory_order_seq_cst);
}

// The first signal of the queue that is in `wanted`, taken out.
bool take(PendingQueue& q, uint64_t wanted, siginfo_t* out) {
  if (!(q.bits.load(std::memory_order_seq_cst) & wanted)) return false;
  Locked locked;
  for (Pending** p = &q.first; *p; p = &(*p)->next) {
    Pending* found = *p;
    int sig = found->info.si_signo;
    if (!(bit(sig) & wanted)) continue;
    *out = found->info;
    *p = found->next;
    found->next = free_pending;
    free_pending = found;
    bool more = false;
    for (Pending* r = q.first; r; r = r->next) more |= r->info.si_signo == sig;
    if (!more) q.bits.fetch_and(~bit(sig), std::memory_order_relaxed);
    return true;
  }
  return false;
}

bool take_any(Fiber* me, uint64_t wanted, siginfo_t* out) {
  return take(state_of(me).queue, wanted, out) || take(process_queue, wanted, out);
}

bool pending_for(Fiber* me, uint64_t wanted) {
  return (state_of(me).queue.bits.load(std::memory_order_seq_cst) | process_queue.bits.load(std::memory_order_seq_cst)) & wanted;
}

uint64_t mask_of(const Fiber* f) { return __atomic_load_n(&f->sigmask, __ATOMIC_SEQ_CST); }
// Sequentially consistent: who changes a mask looks at what is pending afterwards, who adds a pending signal looks at the
// mask afterwards.
void set_mask_of(Fiber* f, uint64_t mask) { __atomic_store_n(&f->sigmask, mask & ~kNeverBlocked, __ATOMIC_SEQ_CST); }

bool alive(Fiber* f) {
  return f->valid.load(std::memory_order_acquire) && !f->done.load(std::memory_order_relaxed) && !state_of(f).ended;
}

// Who takes a signal sent to the process; null: nobody now.
Fiber* pick_target(Fiber* me, int sig) {
  if (alive(main_fiber) && !(mask_of(main_fiber) & bit(sig))) return main_fiber;
  if (me && !me->kernel && !(mask_of(me) & bit(sig))) return me;
  struct Search {
    uint64_t b;
    Fiber* found;
  } search{bit(sig), nullptr};
  block_each(
      [](Fiber* f, void* p) {
        auto* s = static_cast<Search*>(p);
        if (!f->tcb || !alive(f) || mask_of(f) & s->b) return true;
        s->found = f;
        return false;
      },
      &search);
  return search.found;
}

// Records a signal for `f`, or for the process if f is null. False if it was dropped: pending already, or no memory.
bool record(Fiber* f, const siginfo_t& info, bool for_process) {
  Locked locked;
  if (f) {
    ThreadSignals& s = state_of(f);
    // Marked before looked at, as signal_thread_ends() does it the other way round: one of us sees the other.
    s.arriving.fetch_add(1, std::memory_order_seq_cst);
    if (s.ended.load(std::memory_order_seq_cst)) f = nullptr;
  }
  PendingQueue& q = f ? state_of(f).queue : process_queue;
  if (info.si_signo < SIGRTMIN && q.bits.load(std::memory_order_relaxed) & bit(info.si_signo)) return false;
  Pending* p = new_pending();
  if (!p) return false;
  p->info = info;
  p->for_process = for_process;
  add(q, p);
  return true;
}

// ---- waking whom a signal was recorded for ----

char poke_mark;  // its address in si_value says that a signal only means "look at what is pending"

bool is_poke(const siginfo_t& info) { return info.si_code == SI_QUEUE && info.si_value.sival_ptr == &poke_mark; }

void tell(Fiber* f, int sig) {
  interrupt(f, kInterruptSignal);
  if (f->kernel || f->state.load(std::memory_order_seq_cst) != State::Running) return;
  // It may be in a system call. If it is not there any more it has looked since.
  Worker* w = __atomic_load_n(&f->worker, __ATOMIC_RELAXED);
  if (!w) return;
  siginfo_t info;
  memset(&info, 0, sizeof info);
  info.si_signo = sig;
  info.si_code = SI_QUEUE;
  info.si_value.sival_ptr = &poke_mark;
  raw_syscall(SYS_rt_tgsigqueueinfo, process, w->tid, sig, arg(&info));
}

// From a handler that may have interrupted the scheduler itself, sysmon has to do it.
struct Told {
  std::atomic<Fiber*> fiber{nullptr};
  std::atomic<int> sig{0};
};
Told to_tell[32];

void tell_by_sysmon(Fiber* f, int sig) {
  f->interrupts.fetch_or(kInterruptSignal, std::memory_order_seq_cst);
  for (;;) {
    for (auto& t : to_tell) {
      Fiber* none = nullptr;
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
    Fiber* f = t.fiber.exchange(nullptr, std::memory_order_acq_rel);
    tell(f, sig);
  }
}

// ---- running the program's handlers ----

// The control and status of floating point. A handler starts with the initial one and changes nothing for whom it interrupts;
// the kernel sees to that only for the first handler that we run in a frame of its.
class FloatingEnvironment {
#if defined(__x86_64__)
  char x87_[28];
  uint32_t mxcsr_, initial_ = 0x1f80;

 public:
  FloatingEnvironment() { asm volatile("fnstenv %0\n\tstmxcsr %1\n\tfninit\n\tldmxcsr %2" : "=m"(x87_), "=m"(mxcsr_) : "m"(initial_) : "memory"); }
  ~FloatingEnvironment() { asm volatile("fldenv %0\n\tldmxcsr %1" : : "m"(x87_), "m"(mxcsr_) : "memory"); }
#elif defined(__aarch64__)
  uint64_t fpcr_, fpsr_;

 public:
  FloatingEnvironment() {
    asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr\n\tmsr fpcr, xzr\n\tmsr fpsr, xzr" : "=&r"(fpcr_), "=&r"(fpsr_) : : "memory");
  }
  ~FloatingEnvironment() { asm volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(fpcr_), "r"(fpsr_) : "memory"); }
#endif
};

void call(const Action& a, int sig, siginfo_t* info, void* context) {
  FloatingEnvironment environment;
  if (a.flags & SA_SIGINFO) reinterpret_cast<void (*)(int, siginfo_t*, void*)>(a.handler)(sig, info, context);
  else reinterpret_cast<void (*)(int)>(a.handler)(sig);
}

// The action to run, once; false if there is no handler any more.
bool claim(int sig, Action& a) {
  a = action_of(sig);
  if (!handled(a)) return false;
  if (a.flags & SA_RESETHAND) {
    Locked locked;
    a = action_of(sig);
    if (!handled(a)) return false;
    Action reset;
    set_action(sig, reset);
    install(sig, reset);
  }
  return true;
}

uint64_t mask_during(uint64_t before, const Action& a, int sig) {
  return before | a.mask | (a.flags & SA_NODEFER ? 0 : bit(sig));
}

// Does to the process what the default action of `sig` is, though this thread may block it.
void default_action(int sig) {
  if (bit(sig) & kIgnoredByDefault) return;
  struct sigaction k;
  memset(&k, 0, sizeof k);
  k.sa_handler = SIG_DFL;
  REAL(sigaction)(sig, &k, nullptr);
  uint64_t set = bit(sig), old;
  uint64_t tid = static_cast<uint64_t>(raw_syscall(SYS_gettid));
  raw_syscall(SYS_tgkill, process, static_cast<long>(tid), sig);
  raw_syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, arg(&set), arg(&old), 8);
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&old), 0, 8);
}

// In the kernel's frame, on the signal stack.
void run_in_frame(Fiber* me, int sig, siginfo_t* info, ucontext_t* uc) {
  Action a;
  if (!claim(sig, a)) {
    if (a.handler == reinterpret_cast<void*>(SIG_DFL)) default_action(sig);
    return;
  }
  uint64_t saved = mask_of(me), in_frame = words(uc->uc_sigmask);
  state_of(me).restarts = a.flags & SA_RESTART;
  set_mask_of(me, mask_during(saved, a, sig));
  sched_apply_mask();
  call(a, sig, info, uc);
  uint64_t now = words(uc->uc_sigmask);
  // It may have edited the mask that it returns to.
  set_mask_of(me, now == in_frame ? saved : now);
}

// As an ordinary call.
void run_as_call(Fiber* me, siginfo_t* info) {
  int sig = info->si_signo;
  Action a;
  if (!claim(sig, a)) {
    if (a.handler == reinterpret_cast<void*>(SIG_DFL)) default_action(sig);
    return;
  }
  int error = errno;
  uint64_t saved = mask_of(me);
  if (!(a.flags & SA_RESTART)) state_of(me).restarts = false;
  ucontext_t uc;
  if (a.flags & SA_SIGINFO) getcontext(&uc);
  else memset(&uc.uc_sigmask, 0, sizeof uc.uc_sigmask);
  uc.uc_sigmask = as_set(saved);
  {
    tls_busy = tls_busy + 1;
    set_mask_of(me, mask_during(saved, a, sig));
    sched_apply_mask();
    tls_busy = tls_busy - 1;
  }
  call(a, sig, info, &uc);
  tls_busy = tls_busy + 1;
  set_mask_of(me, words(uc.uc_sigmask));
  sched_apply_mask();
  tls_busy = tls_busy - 1;
  errno = error;
}

// A fault in the guard of the running fiber's stack: says so before the default action.
void report_overflow(const Fiber* f, const siginfo_t& info) {
  if (!f || !f->block || f->user_stack) return;
  auto at = static_cast<char*>(info.si_addr);
  if (at < f->block || at >= f->block + f->guard_size) return;
  char line[256];
  char* p = line;
  auto text = [&](const char* s) {
    while (*s) *p++ = *s++;
  };
  auto hex = [&](const void* v) {
    auto n = reinterpret_cast<uintptr_t>(v);
    text("0x");
    for (int shift = 60, begun = 0; shift >= 0; shift -= 4) {
      unsigned d = n >> shift & 15;
      if (d || begun || shift == 0) *p++ = "0123456789abcdef"[d], begun = 1;
    }
  };
  text("fiberthread: stack overflow in fiber ");
  if (*f->name) text("\""), text(f->name), text("\" ");
  text("started at ");
  hex(reinterpret_cast<const void*>(f->start));
  text(", stack ");
  hex(f->stack_low);
  text(" to ");
  hex(f->stack_high);
  text("\n");
  raw_syscall(SYS_write, 2, arg(line), p - line);
}

void fault(Fiber* me, int sig, siginfo_t* info, ucontext_t* uc) {
  if (user_memory_fault(uc)) return;
  Action a = action_of(sig);
  if (handled(a) && (me || !sched_started())) {
    if (me && !me->kernel) run_in_frame(me, sig, info, uc);
    else if (claim(sig, a)) call(a, sig, info, uc);
    return;
  }
  if (sig == SIGSEGV) report_overflow(me, *info);
  struct sigaction k;
  memset(&k, 0, sizeof k);
  k.sa_handler = SIG_DFL;
  REAL(sigaction)(sig, &k, nullptr);  // it faults again when we return, and that ends the process as it should
}

bool sent_to_thread(const siginfo_t& info) {
  if (info.si_code == SI_TKILL) return true;
  // A write to a closed pipe or beyond the size limit concerns the writer; the kernel does not say so.
  return (info.si_signo == SIGPIPE || info.si_signo == SIGXFSZ) && info.si_code <= 0 && info.si_pid == process;
}

// Timers of CPU time concern who used it up: the thread that the kernel found running.
bool profiles(const siginfo_t& info) {
  return (info.si_signo == SIGPROF || info.si_signo == SIGVTALRM) && info.si_code == SI_KERNEL;
}

void dispatch(int sig, siginfo_t* info, ucontext_t* uc) {
  Fiber* me = tls_current;
  if (bit(sig) & kFaults && info->si_code > 0) {
    fault(me, sig, info, uc);
    return;
  }
  if (!sched_started() || (me && me->kernel && tls_busy == 0 && sent_to_thread(*info))) {
    // A kernel thread that stands for itself, and the kernel has done all about its mask.
    if (me && tls_busy > 0) {
      set_mask_of(me, words(uc->uc_sigmask));
      if (record(me, *info, false)) me->interrupts.fetch_or(kInterruptSignal, std::memory_order_seq_cst);
      return;
    }
    Action a;
    if (claim(sig, a)) call(a, sig, info, uc);
    else if (a.handler == reinterpret_cast<void*>(SIG_DFL)) default_action(sig);
    return;
  }
  bool idle_context = tls_busy > 0 || !me;  // nothing of the program may run, no lock may be taken
  siginfo_t got = *info;
  if (!is_poke(got)) {
    bool gone = false;
    Fiber* timed = got.si_code == SI_TIMER ? timer_target(got.si_timerid, &gone) : nullptr;
    if (gone) return;
    Fiber* to = timed ? timed : me && (sent_to_thread(got) || profiles(got)) ? me : pick_target(me, sig);
    if (to != me || idle_context || mask_of(me) & bit(sig)) {
      if (!record(to, got, !timed && !sent_to_thread(got))) return;
      if (!to) return;
      if (timed && mask_of(to) & bit(sig) && !(state_of(to).waited_for.load(std::memory_order_seq_cst) & bit(sig))) return;
      if (to == me) me->interrupts.fetch_or(kInterruptSignal, std::memory_order_seq_cst);
      else if (idle_context) tell_by_sysmon(to, sig);
      else tell(to, sig);
      return;
    }
    run_in_frame(me, sig, &got, uc);
  }
  if (idle_context) return;  // when it leaves Busy it looks
  while (take_any(me, ~mask_of(me), &got)) run_in_frame(me, got.si_signo, &got, uc);
}

void on_signal(int sig, siginfo_t* info, void* context) {
  int error = errno;
  auto* uc = static_cast<ucontext_t*>(context);
  Fiber* me = tls_current;
  Worker* w = me && !me->kernel && tls_busy == 0 ? me->worker : nullptr;
  if (w) {
    // The kernel has changed the mask for us, and changes it back to uc_sigmask when we return.
    Action a = action_of(sig);
    w->kernel_mask = mask_during(words(uc->uc_sigmask), a, sig) & ~kNeverBlocked;
  }
  dispatch(sig, info, uc);
  if (w) w->kernel_mask = words(uc->uc_sigmask) & ~kNeverBlocked;
  errno = error;
}

uint64_t new_mask(uint64_t old, int how, uint64_t set) {
  set &= ~kNeverBlocked;
  switch (how) {
    case SIG_BLOCK: return old | set;
    case SIG_UNBLOCK: return old & ~set;
    default: return set;
  }
}

// What is pending and not blocked any more runs now.
void run_pending(Fiber* me) {
  if (!pending_for(me, ~mask_of(me))) return;
  me->interrupts.fetch_or(kInterruptSignal, std::memory_order_relaxed);
  leave_busy_slow();
}

void change_mask(Fiber* me, uint64_t mask) {
  uint64_t before = mask_of(me);
  if (mask != before) {
    {
      Busy busy;
      set_mask_of(me, mask);
      sched_apply_mask();
    }
    if (me == main_fiber) sysmon_set_mask(mask);
  }
  run_pending(me);
}

// A fiber whose mask we keep; null: the kernel's calls do.
Fiber* ours() {
  if (!sched_started()) return nullptr;
  Fiber* me = tls_current;
  return me && !me->kernel && !in_vfork_child() ? me : nullptr;
}

// A system call that waits with another mask.
template <class Call>
long masked_wait(Fiber* me, const sigset_t* set, Call call) {
  test_cancel();
  uint64_t old = signal_begin_mask(me, words(*set));
  long r = pending_for(me, ~mask_of(me)) || cancel_pending(me) ? -EINTR : call();
  signal_end_mask(me, old);
  if (r == -EINTR) test_cancel();
  return r;
}

void take_over(int sig) {
  struct sigaction k;
  if (REAL(sigaction)(sig, nullptr, &k) != 0) return;
  Action a;
  a.handler = k.sa_flags & SA_SIGINFO ? reinterpret_cast<void*>(k.sa_sigaction) : reinterpret_cast<void*>(k.sa_handler);
  a.mask = words(k.sa_mask);
  a.flags = k.sa_flags;
  Locked locked;
  set_action(sig, a);
  if (handled(a) || sig == SIGSEGV) install(sig, a);
}

thread_local constinit stack_t alternate_stack{};

}  // namespace

bool in_vfork_child() { return static_cast<int>(raw_syscall(SYS_getpid)) != process; }

void signal_init() {
  if (taken_over.load(std::memory_order_acquire)) return;
  process = static_cast<int>(raw_syscall(SYS_getpid));
  // Handlers call these, and must not be the first to look them up.
  (void)REAL(sigaction);
  (void)REAL(pthread_sigmask);
  (void)REAL(siglongjmp);
  (void)REAL(longjmp);
  (void)REAL(_longjmp);
  (void)REAL(__longjmp_chk);
  io_init();
  socket_init();
  fd_init();
  raw_syscall(SYS_sigaltstack, 0, arg(&alternate_stack));
  for (int sig = 1; sig <= kSignals; sig++)
    if (!(bit(sig) & kNeverBlocked)) take_over(sig);
  preempt_poke_hook = cancel_poked;
  sysmon_hook = on_sysmon;
  taken_over.store(true, std::memory_order_release);
}

void signal_scheduler_started() {
  process = static_cast<int>(raw_syscall(SYS_getpid));
  sysmon_set_mask(mask_of(main_fiber));
}

void signal_thread_ends(Fiber* me) {
  alternate_stack = {};
  ThreadSignals& s = state_of(me);
  s.ended.exchange(true, std::memory_order_seq_cst);
  if (s.arriving.load(std::memory_order_seq_cst) == 0) return;  // the usual end, without a system call
  Pending* homeless = nullptr;
  {
    Locked locked;
    for (Pending* p = s.queue.first; p;) {
      Pending* next = p->next;
      Pending*& to = p->for_process ? homeless : free_pending;
      p->next = to;
      to = p;
      p = next;
    }
    s.queue.first = nullptr;
    s.queue.bits.store(0, std::memory_order_relaxed);
  }
  while (homeless) {
    Pending* p = homeless;
    homeless = p->next;
    Fiber* to = pick_target(nullptr, p->info.si_signo);
    if (record(to, p->info, true) && to) tell(to, p->info.si_signo);
    Locked locked;
    p->next = free_pending;
    free_pending = p;
  }
}

void signal_after_fork_child() {
  process = static_cast<int>(raw_syscall(SYS_getpid));
  signals_lock.reset();
  // Another thread may have been writing.
  for (auto& slot : actions) slot.version.store((slot.version.load() + 1) & ~1u);
  // Nothing is pending in a child.
  process_queue.bits.store(0);
  process_queue.first = nullptr;
  ThreadSignals& s = state_of(tls_current);
  s.queue.bits.store(0);
  s.queue.first = nullptr;
  s.waited_for.store(0);
  s.ended = false;
  for (auto& t : to_tell) {
    t.fiber.store(nullptr);
    t.sig.store(0);
  }
  if (!taken_over.load()) return;
  // The one kernel thread has the program's own alternate stack again.
  stack_t ss = alternate_stack;
  if (!ss.ss_sp) ss.ss_flags = SS_DISABLE;
  raw_syscall(SYS_sigaltstack, arg(&ss), 0);
}

bool signal_restarts(Fiber* me) { return state_of(me).restarts; }

uint64_t signal_begin_mask(Fiber* me, uint64_t set) {
  uint64_t old = mask_of(me);
  tls_busy = tls_busy + 1;
  set_mask_of(me, set);
  return old;
}

void signal_end_mask(Fiber* me, uint64_t old) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  tls_busy = tls_busy - 1;
  run_pending(me);
  {
    Busy busy;
    set_mask_of(me, old);
    // The kernel is back at the old mask by itself, or a handler's end has set the other one.
    sched_apply_mask();
  }
  run_pending(me);
}

bool signal_mask_is_ours() { return ours(); }

bool signal_is_pending(Fiber* me) {
  me->interrupts.fetch_and(~uint32_t{kInterruptSignal}, std::memory_order_seq_cst);
  if (!pending_for(me, ~mask_of(me))) return false;
  me->interrupts.fetch_or(kInterruptSignal, std::memory_order_relaxed);
  return true;
}

long signal_masked_call(uint64_t mask, long number, long a, long b, long c, long d, long e, long f) {
  sigset_t set = as_set(mask);
  return masked_wait(self(), &set, [&] { return raw_syscall(number, a, b, c, d, e, f); });
}

void leave_busy_slow() {
  Fiber* me = tls_current;
  state_of(me).restarts = true;  // until a handler says no
  while (me->interrupts.load(std::memory_order_relaxed) & kInterruptSignal) {
    me->interrupts.fetch_and(~uint32_t{kInterruptSignal}, std::memory_order_seq_cst);
    siginfo_t info;
    while (take_any(me, ~mask_of(me), &info)) run_as_call(me, &info);
  }
  cancel_if_asynchronous();
}

int signal_send(Fiber* to, int sig, const siginfo_t* given) {
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
    info.si_uid = getuid();
  }
  if (to->kernel) return static_cast<int>(-raw_syscall(SYS_rt_tgsigqueueinfo, process, to->id, sig, arg(&info)));
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
  if (to == tls_current) {
    Busy busy;
    record(to, info, false);
    if (!blocked) to->interrupts.fetch_or(kInterruptSignal, std::memory_order_relaxed);
    return 0;
  }
  if (!record(to, info, false)) return 0;
  // Looked at again: it may have been unblocked, or waited for, meanwhile.
  if (!(mask_of(to) & bit(sig)) || state_of(to).waited_for.load(std::memory_order_seq_cst) & bit(sig)) {
    Busy busy;
    tell(to, sig);
  }
  return 0;
}

int thread_kill_tid(int tgid, int tid, int sig, const siginfo_t* info) {
  if (tid <= 0 || (tgid != -1 && tgid <= 0)) return EINVAL;
  int pid = static_cast<int>(raw_syscall(SYS_getpid));
  if (sched_started() && (tgid == pid || tgid == -1) && !in_vfork_child()) {
    Fiber* f = fiber_of_tid(tid);
    if (f && !f->kernel) return f->done.load(std::memory_order_acquire) ? ESRCH : signal_send(f, sig, info);
  }
  long r;
  if (info) r = tgid == -1 ? raw_syscall(SYS_rt_sigqueueinfo, tid, sig, arg(info)) : raw_syscall(SYS_rt_tgsigqueueinfo, tgid, tid, sig, arg(info));
  else r = tgid == -1 ? raw_syscall(SYS_tkill, tid, sig) : raw_syscall(SYS_tgkill, tgid, tid, sig);
  return static_cast<int>(-r);
}

int signal_mask_raw(int how, const uint64_t* set, uint64_t* old) {
  Fiber* me = ours();
  if (!me) {
    int e = static_cast<int>(-raw_syscall(SYS_rt_sigprocmask, how, arg(set), arg(old), 8));
    if (e == 0 && set && tls_current && !(sched_started() && in_vfork_child()))
      raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, 0, arg(&tls_current->sigmask), 8);
    return e;
  }
  if (set && how != SIG_BLOCK && how != SIG_UNBLOCK && how != SIG_SETMASK) return EINVAL;
  uint64_t before = mask_of(me);
  uint64_t wanted = set ? *set : 0;
  if (old) *old = before;
  if (set) change_mask(me, new_mask(before, how, wanted));
  return 0;
}

}  // namespace fiberthread

using namespace fiberthread;

// ---- actions ----

FIBERTHREAD_EXPORT int sigaction(int sig, const struct sigaction* act, struct sigaction* old) noexcept {
  bool mine = taken_over.load(std::memory_order_acquire) && sig > 0 && sig <= kSignals && !(bit(sig) & kNeverBlocked);
  if (!mine || in_vfork_child()) return REAL(sigaction)(sig, act, old);
  // The caller's memory is touched outside of the lock.
  Action wanted, before;
  if (act) {
    wanted.handler = act->sa_flags & SA_SIGINFO ? reinterpret_cast<void*>(act->sa_sigaction) : reinterpret_cast<void*>(act->sa_handler);
    wanted.mask = words(act->sa_mask) & ~kNeverBlocked;
    wanted.flags = act->sa_flags;
  }
  {
    Busy busy;
    Locked locked;
    before = action_of(sig);
    if (act) {
      set_action(sig, wanted);
      install(sig, wanted);
    }
  }
  if (old) {
    memset(old, 0, sizeof *old);
    if (before.flags & SA_SIGINFO) old->sa_sigaction = reinterpret_cast<void (*)(int, siginfo_t*, void*)>(before.handler);
    else old->sa_handler = reinterpret_cast<sighandler_t>(before.handler);
    old->sa_mask = as_set(before.mask);
    old->sa_flags = before.flags;
  }
  return 0;
}

namespace {
sighandler_t set_handler(int sig, sighandler_t handler, int flags) {
  struct sigaction act, old;
  memset(&act, 0, sizeof act);
  act.sa_handler = handler;
  act.sa_flags = flags;
  if (handler == SIG_ERR || sig < 1 || sig > kSignals) {
    errno = EINVAL;
    return SIG_ERR;
  }
  // BSD's signal() blocks only the signal itself; System V's nothing.
  return sigaction(sig, &act, &old) == 0 ? old.sa_handler : SIG_ERR;
}
}  // namespace

FIBERTHREAD_EXPORT sighandler_t signal(int sig, sighandler_t handler) noexcept {
  bool restart = sig < 1 || sig > kSignals || !(interrupting.load(std::memory_order_relaxed) & bit(sig));
  return set_handler(sig, handler, restart ? SA_RESTART : 0);
}
FIBERTHREAD_ALIAS(bsd_signal, signal);
FIBERTHREAD_ALIAS(ssignal, signal);

FIBERTHREAD_EXPORT sighandler_t sysv_signal(int sig, sighandler_t handler) noexcept {
  return set_handler(sig, handler, static_cast<int>(SA_RESETHAND | SA_NODEFER));
}
FIBERTHREAD_ALIAS(__sysv_signal, sysv_signal);

FIBERTHREAD_EXPORT int siginterrupt(int sig, int interrupt) noexcept {
  struct sigaction act;
  if (sigaction(sig, nullptr, &act) != 0) return -1;
  if (interrupt) {
    interrupting.fetch_or(bit(sig), std::memory_order_relaxed);
    act.sa_flags &= ~SA_RESTART;
  } else {
    interrupting.fetch_and(~bit(sig), std::memory_order_relaxed);
    act.sa_flags |= SA_RESTART;
  }
  return sigaction(sig, &act, nullptr);
}

FIBERTHREAD_EXPORT int sigignore(int sig) noexcept { return set_handler(sig, SIG_IGN, 0) == SIG_ERR ? -1 : 0; }

// ---- masks ----

FIBERTHREAD_EXPORT int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  Fiber* me = ours();
  if (!me) {
    int e = REAL(pthread_sigmask)(how, set, old);
    if (e == 0 && set && tls_current && !(sched_started() && in_vfork_child()))
      raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, 0, arg(&tls_current->sigmask), 8);
    return e;
  }
  uint64_t s = 0, o = 0;
  if (set) s = words(*set);
  int e = signal_mask_raw(how, set ? &s : nullptr, &o);
  if (e == 0 && old) *old = as_set(o);
  return e;
}

FIBERTHREAD_EXPORT int sigprocmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  int e = pthread_sigmask(how, set, old);
  if (e == 0) return 0;
  errno = e;
  return -1;
}

FIBERTHREAD_EXPORT int sigblock(int mask) noexcept {
  sigset_t set = as_set(static_cast<unsigned>(mask)), old;
  return sigprocmask(SIG_BLOCK, &set, &old) == 0 ? static_cast<int>(words(old)) : -1;
}
FIBERTHREAD_EXPORT int sigsetmask(int mask) noexcept {
  sigset_t set = as_set(static_cast<unsigned>(mask)), old;
  return sigprocmask(SIG_SETMASK, &set, &old) == 0 ? static_cast<int>(words(old)) : -1;
}
FIBERTHREAD_EXPORT int sighold(int sig) noexcept {
  sigset_t set;
  sigemptyset(&set);
  return sigaddset(&set, sig) == 0 ? sigprocmask(SIG_BLOCK, &set, nullptr) : -1;
}
FIBERTHREAD_EXPORT int sigrelse(int sig) noexcept {
  sigset_t set;
  sigemptyset(&set);
  return sigaddset(&set, sig) == 0 ? sigprocmask(SIG_UNBLOCK, &set, nullptr) : -1;
}

FIBERTHREAD_EXPORT sighandler_t sigset(int sig, sighandler_t handler) noexcept {
  sigset_t set, old;
  sigemptyset(&set);
  if (sigaddset(&set, sig) != 0) return SIG_ERR;
  if (handler == SIG_HOLD) {
    struct sigaction now;
    if (sigprocmask(SIG_BLOCK, &set, &old) != 0 || sigaction(sig, nullptr, &now) != 0) return SIG_ERR;
    return sigismember(&old, sig) ? SIG_HOLD : now.sa_handler;
  }
  sighandler_t before = set_handler(sig, handler, 0);
  if (before == SIG_ERR || sigprocmask(SIG_UNBLOCK, &set, &old) != 0) return SIG_ERR;
  return sigismember(&old, sig) ? SIG_HOLD : before;
}

FIBERTHREAD_EXPORT int sigpending(sigset_t* set) noexcept {
  int r = REAL(sigpending)(set);
  if (Fiber* me = ours(); r == 0 && me)
    *set = as_set(words(*set) | ((state_of(me).queue.bits.load() | process_queue.bits.load()) & mask_of(me)));
  return r;
}

// The jump restores a mask in the kernel; ours must follow.
namespace {
void restore_saved_mask(const struct __jmp_buf_tag* env) {
  if (Fiber* me = env->__mask_was_saved ? ours() : nullptr) change_mask(me, words(reinterpret_cast<const sigset_t&>(env->__saved_mask)) & ~kNeverBlocked);
}
}  // namespace
FIBERTHREAD_EXPORT void siglongjmp(struct __jmp_buf_tag* env, int value) noexcept {
  restore_saved_mask(env);
  REAL(siglongjmp)(env, value);
  __builtin_unreachable();
}
FIBERTHREAD_EXPORT void longjmp(struct __jmp_buf_tag* env, int value) noexcept {
  restore_saved_mask(env);
  REAL(longjmp)(env, value);
  __builtin_unreachable();
}
FIBERTHREAD_EXPORT void _longjmp(struct __jmp_buf_tag* env, int value) noexcept {
  restore_saved_mask(env);
  REAL(_longjmp)(env, value);
  __builtin_unreachable();
}
FIBERTHREAD_EXPORT void __longjmp_chk(struct __jmp_buf_tag* env, int value) noexcept {
  restore_saved_mask(env);
  REAL(__longjmp_chk)(env, value);
  __builtin_unreachable();
}

// ---- sending ----

FIBERTHREAD_EXPORT int pthread_kill(pthread_t t, int sig) noexcept {
  Fiber* f = sched_started() ? fiber_of(t) : nullptr;
  if (!f) return sched_started() && stale_handle(t) ? ESRCH : REAL(pthread_kill)(t, sig);
  return signal_send(f, sig, nullptr);
}

FIBERTHREAD_EXPORT int pthread_sigqueue(pthread_t t, int sig, const union sigval value) noexcept {
  Fiber* f = sched_started() ? fiber_of(t) : nullptr;
  if (!f) return sched_started() && stale_handle(t) ? ESRCH : REAL(pthread_sigqueue)(t, sig, value);
  siginfo_t info;
  memset(&info, 0, sizeof info);
  info.si_code = SI_QUEUE;
  info.si_pid = process;
  info.si_uid = getuid();
  info.si_value = value;
  return signal_send(f, sig, &info);
}

FIBERTHREAD_EXPORT int raise(int sig) noexcept {
  Fiber* me = ours();
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
  Fiber* me = sig > 0 && sig <= kSignals ? ours() : nullptr;
  if (!me || pid != process || !handled(action_of(sig)) || bit(sig) & kNeverBlocked) return false;
  Fiber* to = pick_target(me, sig);
  if (!to) return false;
  siginfo_t info;
  memset(&info, 0, sizeof info);
  info.si_signo = sig;
  info.si_code = code;
  info.si_pid = process;
  info.si_uid = getuid();
  if (code == SI_QUEUE) info.si_value = value;
  Busy busy;
  if (!record(to, info, true)) return true;
  if (to == me) me->interrupts.fetch_or(kInterruptSignal, std::memory_order_relaxed);
  else tell(to, sig);
  return true;
}
}  // namespace

FIBERTHREAD_EXPORT int kill(pid_t pid, int sig) noexcept {
  if (sent_to_ourselves(pid, sig, SI_USER, {})) return 0;
  return static_cast<int>(with_errno(raw_syscall(SYS_kill, pid, sig)));
}

FIBERTHREAD_EXPORT int sigqueue(pid_t pid, int sig, const union sigval value) noexcept {
  if (sent_to_ourselves(pid, sig, SI_QUEUE, value)) return 0;
  return REAL(sigqueue)(pid, sig, value);
}

FIBERTHREAD_EXPORT int tgkill(pid_t tgid, pid_t tid, int sig) noexcept {
  return static_cast<int>(with_errno(-thread_kill_tid(tgid, tid, sig, nullptr)));
}

// ---- waiting ----

FIBERTHREAD_EXPORT int sigsuspend(const sigset_t* set) {
  Fiber* me = ours();
  if (!me) return REAL(sigsuspend)(set);
  uint64_t s = words(*set);
  return static_cast<int>(with_errno(masked_wait(me, set, [&] {
    long r;
    // Our own signals end it as well.
    do r = raw_syscall(SYS_rt_sigsuspend, arg(&s), 8);
    while (r == -EINTR && !pending_for(me, ~mask_of(me)) && !cancel_pending(me));
    return r;
  })));
}

FIBERTHREAD_EXPORT int pause() {
  Fiber* me = ours();
  if (!me) return REAL(pause)();
  sigset_t set = as_set(mask_of(me));
  return sigsuspend(&set);
}

// XSI's: takes a signal. Headers give it the name __xpg_sigpause.
FIBERTHREAD_EXPORT int sigpause(int sig) {
  sigset_t set;
  sigprocmask(SIG_BLOCK, nullptr, &set);
  if (sigdelset(&set, sig) != 0) return -1;
  return sigsuspend(&set);
}
// BSD's, of the plain name: takes a mask.
FIBERTHREAD_EXPORT int sigpause_mask(int mask) __asm__("sigpause");
FIBERTHREAD_EXPORT int sigpause_mask(int mask) {
  sigset_t set = as_set(static_cast<unsigned>(mask));
  return sigsuspend(&set);
}

// Signals for the process are waited for in the kernel, where they are; those sent to this thread are ours.
FIBERTHREAD_EXPORT int sigtimedwait(const sigset_t* set, siginfo_t* info, const timespec* timeout) {
  Fiber* me = ours();
  if (!me) return REAL(sigtimedwait)(set, info, timeout);
  uint64_t wanted = words(*set) & ~kNeverBlocked;
  ThreadSignals& s = state_of(me);
  siginfo_t got;
  uint64_t deadline = kNever;
  if (timeout) {
    if (!valid(*timeout)) return static_cast<int>(with_errno(-EINVAL));
    deadline = timeout->tv_sec < 0 ? 0 : now_ns() + static_cast<uint64_t>(timeout->tv_sec * kNsPerSec + timeout->tv_nsec);
  }
  int r;
  for (;;) {
    test_cancel();
    // Before looking: who sends afterwards interrupts us.
    s.waited_for.exchange(wanted, std::memory_order_seq_cst);
    if (take_any(me, wanted, &got)) {
      r = got.si_signo;
      break;
    }
    timespec left{};
    if (timeout) {
      uint64_t now = now_ns();
      if (deadline > now) left = {static_cast<time_t>((deadline - now) / kNsPerSec), static_cast<long>((deadline - now) % kNsPerSec)};
    }
    r = REAL(sigtimedwait)(set, &got, timeout ? &left : nullptr);
    if (r > 0 && !is_poke(got)) break;
    if (r < 0 && errno == EINTR && pending_for(me, wanted)) continue;
    if (r < 0) break;
  }
  s.waited_for.store(0, std::memory_order_relaxed);
  if (r > 0 && info) {
    *info = got;
    if (info->si_code == SI_TKILL) info->si_code = SI_USER;  // as libc's
  }
  return r;
}

FIBERTHREAD_EXPORT int sigwaitinfo(const sigset_t* set, siginfo_t* info) {
  if (!ours()) return REAL(sigwaitinfo)(set, info);
  return sigtimedwait(set, info, nullptr);
}

FIBERTHREAD_EXPORT int sigwait(const sigset_t* set, int* sig) {
  if (!ours()) return REAL(sigwait)(set, sig);
  int error = errno, r;
  do r = sigtimedwait(set, nullptr, nullptr);
  while (r < 0 && errno == EINTR);
  if (r < 0) {
    r = errno;
    errno = error;
    return r;
  }
  *sig = r;
  return 0;
}

// ---- the alternate stack: recorded, but handlers run on the worker's own ----

FIBERTHREAD_EXPORT int sigaltstack(const stack_t* ss, stack_t* old) noexcept {
  if (!ours()) return REAL(sigaltstack)(ss, old);
  if (ss) {
    if (ss->ss_flags & ~(SS_DISABLE | SS_ONSTACK | static_cast<int>(1u << 31))) return static_cast<int>(with_errno(-EINVAL));
    if (!(ss->ss_flags & SS_DISABLE) && ss->ss_size < 2048 /* the kernel's MINSIGSTKSZ */) return static_cast<int>(with_errno(-ENOMEM));
  }
  stack_t before = alternate_stack;
  if (!before.ss_sp) before.ss_flags = SS_DISABLE;
  if (ss) alternate_stack = ss->ss_flags & SS_DISABLE ? stack_t{} : *ss;
  if (old) *old = before;
  return 0;
}
