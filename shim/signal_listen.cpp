// SPDX-License-Identifier: MIT
// The listener. It is a kernel thread that takes signals sent to the process which no other kernel thread of ours would take. The others
// have the masks of the fibers that they run, or the main fiber's, or block all. So the listener takes what only parked fibers have
// unblocked, or wait for by sigwait. If another kernel thread lets a signal in, the listener leaves it to that one. It is started when there
// is such a fiber. It takes nothing out of the kernel that no fiber wants, because other code may look for it there (a signalfd, or a
// program that is exec'ed).
#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>

#include "sched/memory/block.h"
#include "sched/own_descriptors.h"
#include "shim/posix_timer.h"
#include "shim/signal_parts.h"

namespace fiberthread {
namespace signals {
namespace {

constexpr int kPoke = kPreemptSignal;  // blocked here

std::atomic<uint64_t> listened{0};
std::atomic<int> listener{0};     // its tid; -1: it is being started
std::atomic<int> signal_fd{-1};   // the listener's own
std::atomic<uint64_t> taking{0};  // the signal that the listener may be taking out of the kernel, as a bit

// Fibers in sigwait and its kin. Under the lock.
SigWaiter* waiters = nullptr;

FiberRecord* waiter_for(int sig) {  // under SignalsGuard
  for (SigWaiter* w = waiters; w; w = w->next)
    if (w->wanted & bit(sig)) return w->fiber;
  return nullptr;
}

bool wanted(int sig) { return pick_target(nullptr, sig) || is_waited_for(sig); }

// Does another kernel thread of ours let the signal in? The kernel has woken that thread for it, and its fiber runs the handler before it
// returns from its system call. The listener would only tell it, and that may come after the call has returned.
bool comes_by_itself(int sig) {
  uint64_t one = bit(sig);
  if (sched_lets_in(one)) return true;
  kernel_record_each(
      [](FiberRecord* f, void* p) {
        auto* signal = static_cast<uint64_t*>(p);
        bool ended = f->join.done.load(std::memory_order_relaxed);  // and waits to be joined
        if (!ended && *signal & ~mask_of(f)) *signal = 0;
        return *signal != 0;
      },
      &one);
  return one == 0;
}

}  // namespace

bool is_waited_for(int sig) {
  SignalsGuard guard;
  return waiter_for(sig);
}

void hand_out(const siginfo_t& info) {
  int sig = info.si_signo;
  TimerTarget timed(info);
  if (timed.gone()) return;
  if (timed.fiber()) {
    signal_send(timed.fiber(), sig, &info);
    return;
  }
  give(pick_target(nullptr, sig), info, TellBy::Caller);
}

namespace {

// Makes the descriptor show `set`, or opens it anew. The program may have closed it by a system call of its own.
void listen_to(uint64_t set) {
  int known = signal_fd.load(std::memory_order_relaxed);
  if (known >= 0 && raw_syscall(SYS_signalfd4, known, arg(&set), 8, SFD_NONBLOCK | SFD_CLOEXEC) == known) return;
  signal_fd.store(-1, std::memory_order_relaxed);
  own_fd_take(raw_syscall(SYS_signalfd4, -1, arg(&set), 8, SFD_NONBLOCK | SFD_CLOEXEC), signal_fd);
}

[[noreturn]] int listen(void*) {
  uint64_t all = ~(kTrapMask | bit(kLibcSetxidSignal)), in_poll = all & ~bit(kPoke);
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&all), 0, 8);
  // A thread that lets a signal in may be kept from running, or block it just now. So it is waited for some 100 ms, not for ever.
  constexpr uint32_t kShortNaps = 100, kPatience = 200;
  for (uint32_t naps = 0;;) {
    uint64_t set = listened.load(std::memory_order_seq_cst), pending = 0;
    listen_to(set);
    pollfd p{signal_fd.load(std::memory_order_relaxed), POLLIN, 0};
    timespec while_blind{0, 20'000'000};                                                      // while there is no descriptor
    raw_syscall(SYS_ppoll, arg(&p), 1, p.fd >= 0 ? 0 : arg(&while_blind), arg(&in_poll), 8);  // a poke ends it
    if (raw_syscall(SYS_rt_sigpending, arg(&pending), 8) != 0) pending = set;                 // a filter refused: each signal is tried
    bool left = false;
    for (pending &= set; pending; pending &= pending - 1) {
      int sig = __builtin_ctzll(pending) + 1;
      uint64_t one = bit(sig);
      if (naps < kPatience && comes_by_itself(sig)) {
        left = true;
        continue;
      }
      taking.exchange(one, std::memory_order_seq_cst);  // before the look at who wants it, as await_unwanted() has it
      // A fiber that wants the signal says so before it asks us to listen. So one of the two sees the other.
      if (!wanted(sig)) {
        listened.fetch_and(~one, std::memory_order_seq_cst);
        if (!wanted(sig)) continue;
        listened.fetch_or(one, std::memory_order_seq_cst);
      }
      siginfo_t info;
      timespec at_once{};
      while (raw_syscall(SYS_rt_sigtimedwait, arg(&one), arg(&info), arg(&at_once), 8) > 0) {
        hand_out(info);
        if (!wanted(sig)) break;
      }
    }
    taking.store(0, std::memory_order_release);
    naps = left ? naps + 1 : 0;
    const long nap[2] = {0, naps <= kShortNaps ? 50'000 : 1'000'000};
    if (left) raw_syscall(SYS_nanosleep, arg(nap), 0);
  }
}

}  // namespace

namespace {

// Starts the listener if there is none. Returns the tid of the one that there was; -1: another thread is starting it; 0: there was none.
int start_listener() {
  int none = 0;
  if (!listener.compare_exchange_strong(none, -1, std::memory_order_acq_rel)) return none;
  Busy busy;
  int tid = start_helper(listen);
  listener.store(tid > 0 ? tid : 0, std::memory_order_release);
  // Other threads may have come meanwhile, which did not know the tid that they had to poke.
  if (tid > 0) raw_syscall(SYS_tgkill, process, tid, kPoke);
  return 0;
}

}  // namespace

void listen_for(uint64_t bits) {
  bits &= ~kNeverBlocked;
  if (!(bits & ~listened.fetch_or(bits, std::memory_order_seq_cst)) && listener.load(std::memory_order_relaxed) != 0) return;
  int tid = start_listener();
  if (tid > 0) raw_syscall(SYS_tgkill, process, tid, kPoke);
  // The caller's kernel thread may have properties that the listener must not inherit. Sysmon has those of the process.
  else if (listener.load(std::memory_order_relaxed) == 0) sysmon_call();
}

void listen_on_sysmon() {
  if (listened.load(std::memory_order_seq_cst) && listener.load(std::memory_order_relaxed) == 0) start_listener();
}

// Acquire: what the listener has recorded is seen from now on.
void await_taken(uint64_t signals) {
  if (!signals || !listener.load(std::memory_order_relaxed)) return;
  // The caller has stored its mask, and looks. The listener notes what it takes, and looks who wants that.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (uint32_t looks = 0; __builtin_expect(taking.load(std::memory_order_acquire) & signals, 0); looks++) {
    constexpr long kNap[2] = {0, 20'000};
    if (looks < 100) cpu_relax();
    else raw_syscall(SYS_nanosleep, arg(kNap), 0);
  }
}

void await_unwanted(uint64_t signals) {
  bool shown = signalfd_may_show(signals);
  if (__builtin_expect(shown, 0)) sched_await_blocked(signals);
  await_taken(signals);
  if (__builtin_expect(shown, 0)) {
    drop_pokes(self(), signals);
    keep_recorded_in_kernel(self(), signals);
  }
}

void add_waiter(SigWaiter& w) {
  SignalsGuard guard;
  w.next = waiters;
  waiters = &w;
}

void remove_waiter(SigWaiter& w) {
  SignalsGuard guard;
  for (SigWaiter** p = &waiters; *p; p = &(*p)->next)
    if (*p == &w) {
      *p = w.next;
      return;
    }
}

void wake_waiter(int sig, TellBy by) {
  FiberRecord* f;
  {
    SignalsGuard guard;
    f = waiter_for(sig);
  }
  // If the fiber has ended its wait by now, this is a spurious wake-up.
  if (f && by != TellBy::Caller) tell(f, sig, by);
  else if (f) unpark(f);
}

// ---- what other fibers have unblocked while main blocks it ----

void unblocked_beside_main(uint64_t mask) {
  uint64_t bits = __atomic_load_n(&followed, __ATOMIC_SEQ_CST) & ~mask & ~kNeverBlocked;
  // Sequentially consistent, as the mask was stored before: the listener clears the bit, and then looks who wants the signal.
  if (__builtin_expect(bits & ~listened.load(std::memory_order_seq_cst), 0)) listen_for(bits);
}

void blocked_by_main(uint64_t mask) {
  struct Search {
    uint64_t wanted, found;
  } search{mask & ~listened.load(std::memory_order_relaxed) & ~kNeverBlocked, 0};
  if (!search.wanted || live_fibers() < 2) return;
  block_each(
      [](FiberRecord* f, void* p) {
        auto* s = static_cast<Search*>(p);
        if (f->memory.tcb && f != main_fiber && f->join.valid.load(std::memory_order_acquire) &&
            !f->join.done.load(std::memory_order_relaxed))
          s->found |= s->wanted & ~mask_of(f);
        return s->found != s->wanted;
      },
      &search);
  if (search.found) listen_for(search.found);
}

void forget_listener() {
  listened.store(0);
  taking.store(0);
  listener.store(0);
  own_fd_close(signal_fd);
  waiters = nullptr;
}

}  // namespace signals

void signal_thread_begins(FiberRecord* f) { signals::unblocked_beside_main(f->run.sigmask); }

}  // namespace fiberthread
