// SPDX-License-Identifier: MIT
// Deadlocks of all fibers: the proof that no fiber can ever run again, and the report of which fiber waits for which.
//
// A program may wait on purpose, for something that the library does not know. So the check reports nothing unless it can prove that no
// fiber will run again. All of this must hold:
// - Every fiber is parked, and waits for something that only a fiber of this process can give.
// - There is no kernel thread but ours, and all workers are idle.
// - No timer and no alarm runs, and a signal could call no handler of the program. (In an explored process, to which nobody sends signals: no
//   timer of the program's is set, and no signal is on its way.)
// The check reads these at different moments. If no worker has started a fiber between the first look and the last, none of them can have
// changed in between.
//
// The check runs on sysmon: no libc lock, no memory allocation. A deadlock is final, so there is one report per process. If a fiber ran
// afterwards all the same, the first report was wrong, and a second one would be wrong too.
#include "sched/observe/deadlock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <initializer_list>

#include "sched/asleep.h"
#include "sched/embedder.h"
#include "sched/explore/explore.h"
#include "sched/observe/dumper.h"
#include "sched/preempt.h"
#include "sched/memory/reaper.h"
#include "sched/observe/observe.h"
#include "sched/observe/waits.h"
#include "sched/worker.h"

namespace fiberthread {
namespace {

constexpr uint32_t kMostFibers = 100;  // lines of the report
constexpr uint32_t kMostCycles = 10;

DeadlockPart* parts = nullptr;
int reported_in = 0;  // the process that has reported; the child of a fork may report its own deadlock

// ---- the check ----

constexpr uint64_t bit(int sig) { return uint64_t{1} << (sig - 1); }

enum class Workers { Idle, OnTheWay, InUse };

Workers look_at_workers(uint32_t& count, uint64_t& beats) {
  count = 0;
  beats = 0;
  Workers all = Workers::Idle;
  for (Worker* w = all_workers(); w; w = w->thread.all_next) {
    if (!w->thread.initial && !w->thread.kernel_tid.load(std::memory_order_acquire)) continue;  // it has ended
    if (w->run.running.load(std::memory_order_seq_cst)) return Workers::InUse;
    // A worker of the pool sets it under the idle lock, after the post-switch action of its last fiber.
    if (!__atomic_load_n(&w->idle.listed, __ATOMIC_ACQUIRE)) all = Workers::OnTheWay;
    if (w->bond.wait_until.load(std::memory_order_relaxed) != kNever) return Workers::InUse;  // stored before `listed`
    count++;
    beats += w->run.heartbeat.load(std::memory_order_seq_cst);
  }
  return all;
}

// Returns true if the program has a handler that another process could call by a signal. Handlers of faults do not count: only code that
// runs can fault, so they wake no fiber. Languages' runtimes and crash reporters install them, and ours for SIGSEGV is always there.
bool handlers_installed() {
  constexpr uint64_t kOthers = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGSYS) | bit(SIGABRT) |
                               kLibcsSignals;
  for (int sig = 1; sig <= 64; sig++) {
    if (kOthers & bit(sig) || (sig == options.dump_signal && dump_signal_is_ours.load(std::memory_order_acquire))) continue;
    uintptr_t action[8] = {};  // the handler comes first
    if (raw_syscall(SYS_rt_sigaction, sig, 0, arg(action), 8) != 0) return true;
    if (action[0] > reinterpret_cast<uintptr_t>(SIG_IGN)) return true;
  }
  return false;
}

// ---- the report ----

void report(uint32_t workers, uint64_t parked) {
  NoSignals no_signals;
  Output out;
  uint32_t base = base_slots();
  uint64_t spawned = fibers_spawned();
  out.begin() << "deadlock: every fiber is parked, and nothing is left that could wake one\n";
  out.begin() << "workers: " << workers << " (base " << base << ", extra " << (workers > base ? workers - base : 0)
              << ", blocked 0); fibers: " << parked << " parked, " << spawned + 1 - parked << " completed, " << spawned << " spawned\n";
  out.flush();
  if (observed(kObserveInbox)) debug_queues();
  if (!dumper_start(kMostFibers) || !dumper_wait()) put_fibers(out, kMostFibers);
  for (DeadlockPart* p = parts; p; p = p->next) p->tell(out);
  out.flush();
  uint32_t cycles_found = 0, steps = 0;
  each_fiber([&](const FiberRecord* f) {
    if (!is_parked(f)) return true;
    uint32_t members = cycle_of(f, steps);
    if (members && is_first_in_cycle(f, members)) {
      put_cycle(out, f, members);
      cycles_found++;
    }
    return cycles_found < kMostCycles && steps < kMostLinks;
  });
  if (!cycles_found) out.begin() << "no cycle: somebody was not woken, or ended without waking\n";
}

}  // namespace

// Handlers of an explored program count only while a signal is on its way: a timer that has sent it is not set any more, and the kernel thread
// that takes it may lack the CPU, or has just left the rest to sysmon.
bool signal_on_its_way() {
  int me = static_cast<int>(raw_syscall(SYS_gettid));
  for (Worker* list : {all_workers(), all_helpers()})
    for (Worker* w = list; w; w = w->thread.all_next) {
      int tid = w->thread.initial ? w->thread.tid : w->thread.kernel_tid.load(std::memory_order_acquire);
      if (tid && tid != me && !asleep_by_proc(tid)) return true;
    }
  return sysmon_is_called();
}

bool timer_set() {
  itimerval alarm{};
  return raw_syscall(SYS_getitimer, ITIMER_REAL, arg(&alarm)) != 0 || alarm.it_value.tv_sec || alarm.it_value.tv_usec ||
         (exploring && embedder().timers_set());
}

// The directory has a link for each thread, and two of its own.
bool no_other_thread(uint32_t workers) {
  struct statx s;
  if (raw_syscall(SYS_statx, AT_FDCWD, arg("/proc/self/task"), 0, STATX_NLINK, arg(&s)) != 0) return false;
  return s.stx_nlink == workers + !sysmon_is_helper() + reaper_running() + helpers.load(std::memory_order_relaxed) + 2;
}

void deadlock_ends_process() {
  uintptr_t by_default[8] = {};
  uint64_t set = bit(SIGABRT);
  raw_syscall(SYS_rt_sigaction, SIGABRT, arg(by_default), 0, 8);
  raw_syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, arg(&set), 0, 8);
  raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), sysmon_tid(), SIGABRT);
}

void deadlock_tell_by(DeadlockPart& part) {
  part.next = parts;
  parts = &part;
}

bool deadlock_reported() { return reported_in != 0 && reported_in == raw_syscall(SYS_getpid); }

bool deadlock_check() {
  if (options.deadlock == DeadlockPolicy::Off || deadlock_reported()) return false;
  uint32_t workers;
  uint64_t beats;
  switch (look_at_workers(workers, beats)) {
    case Workers::InUse: return false;
    case Workers::OnTheWay: return true;
    case Workers::Idle: break;
  }
  uint64_t live = live_fibers();
  // Nobody sends signals to an explored program but itself.
  if (main_fiber->run.kernel || (!exploring && handlers_installed())) return false;
  uint64_t parked = 0;
  bool stuck = each_fiber([&](const FiberRecord* f) {
    State s = f->run.state.load(std::memory_order_acquire);
    if (s == State::Parked) parked++;
    return s == State::Done || (s == State::Parked && waits_for_fibers(f));
  });
  if (!stuck || parked == 0 || parked != live || timer_set() || !no_other_thread(workers)) return false;
  if (exploring && signal_on_its_way()) return true;  // after the look at timers, and before that at what the workers have done
  uint64_t beats_now;
  if (look_at_workers(workers, beats_now) != Workers::Idle || beats_now != beats) return true;
  if (work_queued() || next_timer() != kNever) return true;
  reported_in = static_cast<int>(raw_syscall(SYS_getpid));
  if (exploring) explore_ends(ExploredEnd::Deadlock);
  report(workers, parked);
  if (options.deadlock == DeadlockPolicy::Abort) deadlock_ends_process();
  return false;
}

}  // namespace fiberthread
