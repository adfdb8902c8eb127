// SPDX-License-Identifier: MIT
// The signal masks of kernel threads. A worker has the mask of the fiber that it runs, and blocks all signals while it sleeps. A bound worker
// keeps its parked fiber's mask, as a thread of NPTL does: to close and open it would be two calls for each wait. If the kernel sends that
// fiber's signals to it (Bond::takes_signals), it also lets in what the fiber waits for by sigwait.
//
// Two kernel threads take signals for the main fiber while it does not run. Sysmon takes those sent to the process. The process's first
// thread has main's number, so the kernel gives it what other processes send to main alone. It takes these while its worker sleeps.
#include <string.h>
#include <ucontext.h>

#include "sched/embedder.h"
#include "sched/life/fork.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"

namespace fiberthread {
namespace {

std::atomic<uint64_t> mask{kIdleMask}, opened{0};
std::atomic<uint32_t> version{1};  // of `mask`; odd, so never 0
std::atomic<Worker*> first{nullptr};

}  // namespace

FIBERTHREAD_IN_FORK_CHILD(Sysmon, main_mask, [](FiberRecord*) {
  mask.store(kIdleMask, std::memory_order_relaxed);  // until the main fiber sets its mask
  opened.store(0, std::memory_order_relaxed);
  first.store(nullptr, std::memory_order_relaxed);
})

void main_mask_of(Worker* w) { first.store(w, std::memory_order_release); }

// A filter may have been announced between the look at `filtered` and the call. See sched_open_trap().
uint64_t set_kernel_mask(uint64_t mask) {
  mask = without_trap(mask);
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&mask), 0, 8);
  return __builtin_expect(mask != without_trap(mask), 0) ? set_kernel_mask(mask) : mask;
}

void tell_kernel_mask(Worker* w, uint64_t new_mask) {
  // From now on, this thread may block what main lets in.
  if (uint64_t mains = mask.load(std::memory_order_relaxed); new_mask != mains && mains != kIdleMask) sysmon_begin();
  new_mask = set_kernel_mask(new_mask);
  __atomic_store_n(&w->run.kernel_mask, new_mask, __ATOMIC_RELEASE);  // after the call: see sched_await_blocked()
}

void sched_block_signals(uint64_t* old) {
  uint64_t all = kIdleMask;  // without kLibcSetxidSignal, which the model thread inherits and tcb_init() needs there
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&all), arg(old), 8);
}

void sched_restore_signals(uint64_t old) { set_kernel_mask(old); }

void sched_apply_mask() {
  FiberRecord* me = self();
  if (!me->run.kernel) apply_mask(me->run.worker, me->run.sigmask);
  else set_kernel_mask(me->run.sigmask);
}

// A worker announces what it runs or follows before its kernel thread has the mask for that. A worker that has just parked its fiber still
// has that fiber's mask while it looks for work. So this waits until each kernel thread blocks what its worker's announcement says.
// An announcement may be read a moment too late. If what it names lets a signal in, a thread of the program still lets that in. Acquire for
// `kernel_mask`: a thread that reads the new value knows that the kernel has that mask.
void sched_await_blocked(uint64_t signals) {
  signals &= kIdleMask;                                 // no worker ever blocks the others
  std::atomic_thread_fence(std::memory_order_seq_cst);  // what the caller has closed, before the looks: see sleep_mask()
  auto lets_in = [&](Worker* w) {
    FiberRecord* f = w->run.running.load(std::memory_order_seq_cst);
    uint64_t will_block = f ? __atomic_load_n(&f->run.sigmask, __ATOMIC_SEQ_CST)
                          : w->idle.follows.load(std::memory_order_seq_cst) != 0
                              ? mask.load(std::memory_order_relaxed) & ~opened.load(std::memory_order_seq_cst)
                              : w->bond.asleep_with.load(std::memory_order_seq_cst);
    return (signals & will_block & ~__atomic_load_n(&w->run.kernel_mask, __ATOMIC_ACQUIRE)) != 0;
  };
  for (Worker* w = all_workers(); w; w = w->thread.all_next)
    for (uint32_t looks = 0; __builtin_expect(lets_in(w), 0); looks++) {
      constexpr long kNap[2] = {0, 20'000};  // to yield would not do for a thread of a real-time policy
      // The first thread may sleep with what was opened for main's last wait. It may do so again after this, as main may wait once more.
      if (looks % 100 == 99 && !w->run.running.load(std::memory_order_relaxed)) get_up(w);
      if (looks < 100) cpu_relax();
      else raw_syscall(SYS_nanosleep, arg(kNap), 0);
    }
}

namespace {
// Returns once neither the first thread, while its worker sleeps, nor sysmon lets in what main's mask blocks. `anew`: once sysmon has made the call.
void tell_main_mask(bool anew) {
  // Not preempted in between: another fiber may wait in sched_await_blocked() until the first thread has this mask.
  Busy busy;
  uint32_t v = version.fetch_add(2, std::memory_order_seq_cst) + 2;
  if (Worker* w = first.load(std::memory_order_acquire))
    for (uint32_t f; (f = w->idle.follows.load(std::memory_order_seq_cst)) && static_cast<int32_t>(f - v) < 0;) {
      get_up(w);
      futex_wait(&w->idle.follows, f);
    }
  sysmon_adopt_mask(v, anew);
}
}  // namespace

// A worker keeps the mask of the fiber that it ran last while it looks for work, and makes calls meanwhile. So all masks change before there
// is a filter. `filtered` was raised first. Either set_kernel_mask() sees that after its call, or the signal comes after that call, and
// changes what it has set.
//
// One that sleeps in the kernel gets the signal before it makes another call. So a bound on the wait does no harm. A call there that the kernel
// does not restart ends with EINTR, if the program has made it by an instruction of its own.
void sched_open_trap() {
  if (!sched_started()) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (mask.load(std::memory_order_relaxed) & kTrapMask) tell_main_mask(true);
  for (Worker* w = all_workers(); w; w = w->thread.all_next)
    for (uint32_t looks = 0; __atomic_load_n(&w->run.kernel_mask, __ATOMIC_ACQUIRE) & kTrapMask && looks < 1000; looks++) {
      constexpr long kNap[2] = {0, 20'000};
      if (!w->thread.initial && !w->thread.kernel_tid.load(std::memory_order_relaxed)) break;  // it has ended
      if (looks == 0) preempt_let_trap_in(w);
      else raw_syscall(SYS_nanosleep, arg(kNap), 0);
    }
}

bool sched_lets_in(uint64_t signals) {
  if (signals & ~mask.load(std::memory_order_relaxed)) return true;  // sysmon has this one
  // Relaxed: an answer that is a moment old only makes the caller wait, or take what another thread would have taken.
  for (Worker* w = all_workers(); w; w = w->thread.all_next) {
    bool lives = w->thread.initial || w->thread.kernel_tid.load(std::memory_order_relaxed);
    if (lives && signals & ~__atomic_load_n(&w->run.kernel_mask, __ATOMIC_RELAXED)) return true;
  }
  return false;
}

uint64_t main_mask() { return mask.load(std::memory_order_relaxed); }
uint32_t main_mask_version() { return version.load(std::memory_order_acquire); }

namespace {

void follow_no_more(Worker* w) {
  uint32_t v = w->idle.follows.exchange(0, std::memory_order_seq_cst);
  if (v != version.load(std::memory_order_seq_cst)) futex_wake(&w->idle.follows, 1 << 30);
}

}  // namespace

// `version` publishes `mask`. `follows` and `version` are sequentially consistent: either the worker sees the new version, or the thread
// that makes it sees which one the worker follows, and waits. The worker says that it follows before it takes the mask.
void sleep_mask(Worker* w) {
  if (!w->thread.initial) {
    // A fiber that was bound a moment ago may still be on another worker, and change its mask at any time.
    FiberRecord* f = w->run.cord ? nullptr : w->bond.fiber;
    uint64_t m = !f || f->run.worker != w                                ? kIdleMask
                 : w->bond.takes_signals.load(std::memory_order_relaxed) ? embedder().refused_by(f)
                                                                         : f->run.sigmask;
    if (m != kIdleMask) w->bond.asleep_with.store(m, std::memory_order_seq_cst);
    return apply_mask(w, m);
  }
  for (;;) {
    uint32_t v = version.load(std::memory_order_seq_cst);
    w->idle.follows.exchange(v, std::memory_order_seq_cst);
    chaos_delay();
    if (v == version.load(std::memory_order_seq_cst)) break;
    follow_no_more(w);
  }
  // Main may close again what is read as open here, and then look whether this thread blocks it (sched_await_blocked). So this
  // thread announces in `kernel_mask` what it is about to let in, and reads `opened` once more. Either main sees the announcement, or this
  // thread sees that main has closed. Relaxed: the fence orders the store.
  uint64_t has = w->run.kernel_mask, open = opened.load(std::memory_order_seq_cst), m, read_before;
  do {
    read_before = open;
    m = without_trap(mask.load(std::memory_order_relaxed) & ~open);
    __atomic_store_n(&w->run.kernel_mask, has & m, __ATOMIC_RELAXED);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    open = opened.load(std::memory_order_seq_cst);
  } while (open != read_before);
  if (m != has) tell_kernel_mask(w, m);
}

void let_trap_in(void* context) {
  auto* uc = static_cast<ucontext_t*>(context);
  uint64_t interrupted;
  memcpy(&interrupted, &uc->uc_sigmask, sizeof interrupted);
  interrupted &= ~kTrapMask;
  memcpy(&uc->uc_sigmask, &interrupted, sizeof interrupted);
  if (Worker* w = this_worker()) __atomic_store_n(&w->run.kernel_mask, w->run.kernel_mask & ~kTrapMask, __ATOMIC_RELEASE);
}

void awake_mask(Worker* w) {
  if (w->bond.asleep_with.load(std::memory_order_relaxed) != kIdleMask) {
    if (!w->bond.handed.load(std::memory_order_relaxed)) apply_mask(w, kIdleMask);  // else it goes on with that mask
    w->bond.asleep_with.store(kIdleMask, std::memory_order_seq_cst);
  }
  uint32_t v = w->idle.follows.load(std::memory_order_relaxed);
  if (!v) return;
  if (v != version.load(std::memory_order_seq_cst)) apply_mask(w, mask.load(std::memory_order_relaxed));  // what main unblocks comes now
  apply_mask(w, kIdleMask);
  follow_no_more(w);
}

// Only main calls this.
void sched_set_main_mask(uint64_t m) {
  if (!sched_started()) return;
  mask.store(m, std::memory_order_relaxed);
  tell_main_mask(false);
}

// Sequentially consistent, as sleep_mask() stores `follows` and then reads `opened`: it sees the signals, or we see that it sleeps.
void sched_open_for_main(uint64_t signals) {
  opened.store(signals, std::memory_order_seq_cst);
  Worker* w = first.load(std::memory_order_acquire);
  if (signals && w && w->idle.follows.load(std::memory_order_seq_cst)) get_up(w);
}

}  // namespace fiberthread
