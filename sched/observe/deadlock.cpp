// SPDX-License-Identifier: MIT
// Deadlocks: the proof that no fiber can ever run again, and the report of which fiber waits for which.
//
// A program may wait on purpose, for something that the library does not know. So the check reports nothing unless it can prove that no
// fiber will run again. All of this must hold:
// - Every fiber is parked, and waits for something that only a fiber of this process can give.
// - There is no kernel thread but ours, and all workers are idle.
// - No timer and no alarm runs, and a signal could call no handler of the program.
// The check reads these at different moments. If no worker has started a fiber between the first look and the last, none of them can have
// changed in between.
//
// The check runs on sysmon: no libc lock, no memory allocation. A deadlock is final, so there is one report per process. If a fiber ran
// afterwards all the same, the first report was wrong, and a second one would be wrong too.
#include "sched/observe/deadlock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "sched/explore/explore.h"
#include "sched/memory/block.h"
#include "sched/observe/dumper.h"
#include "sched/preempt.h"
#include "sched/memory/reaper.h"
#include "sched/observe/report.h"
#include "sched/observe/observe.h"
#include "sched/worker.h"

namespace fiberthread {
namespace {

constexpr uint32_t kMostFibers = 100;  // lines of the report
constexpr uint32_t kMostCycles = 10;
constexpr uint32_t kMostInCycle = 20;
constexpr uint32_t kMostSteps = 1 << 20;  // steps of the search for cycles, in all

// Reasons to wait that only a fiber of this process can end. A wait for another reason may end in other ways.
constexpr const char* kByFibers[] = {"mutex",
                                     "cond",
                                     "semaphore",
                                     "rwlock (read)",
                                     "rwlock (write)",
                                     "barrier",
                                     "once",
                                     "join",
                                     "futex",
                                     "yield",
                                     "call",
                                     "start",
                                     "Mutex",
                                     "ConditionVariable",
                                     "channel (send)",
                                     "channel (receive)",
                                     "select",
                                     "Semaphore",
                                     "RwLock (read)",
                                     "RwLock (write)",
                                     "WaitGroup",
                                     "Latch",
                                     "Barrier",
                                     "Once",
                                     "cord",
                                     "message",
                                     "job",
                                     "job queue",
                                     "nursery",
                                     "future",
                                     "futures",
                                     "sequencer",
                                     "fair mutex"};

WaitLook* looks = nullptr;
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

// Returns true if there is no kernel thread but the workers, sysmon, the reaper and the helpers. The directory has
// a link for each thread, and two of its own.
bool no_other_thread(uint32_t workers) {
  struct statx s;
  if (raw_syscall(SYS_statx, AT_FDCWD, arg("/proc/self/task"), 0, STATX_NLINK, arg(&s)) != 0) return false;
  return s.stx_nlink == workers + 1 + reaper_running() + helpers.load(std::memory_order_relaxed) + 2;
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

// A program that has set an alarm without a handler wants the alarm to end it.
bool alarm_set() {
  itimerval alarm{};
  return raw_syscall(SYS_getitimer, ITIMER_REAL, arg(&alarm)) != 0 || alarm.it_value.tv_sec || alarm.it_value.tv_usec;
}

// Calls visit(f) for every record that may have a fiber, until visit() returns false. Returns false in that case.
template <class Visit>
bool each_fiber(Visit visit) {
  if (!main_fiber->memory.block && !visit(main_fiber)) return false;
  struct {
    Visit& visit;
    bool all = true;
  } state{visit};
  block_each(
      [](FiberRecord* f, void* p) {
        auto* s = static_cast<decltype(state)*>(p);
        return s->all = s->visit(f);
      },
      &state);
  return state.all;
}

bool is_parked(const FiberRecord* f) { return f->run.state.load(std::memory_order_acquire) == State::Parked; }

// Returns true if `f` is a fiber's record. Owners are read from the program's memory, which may hold anything.
bool is_fiber(const FiberRecord* f) {
  if (f == main_fiber) return true;
  return f && readable(&f->memory.tcb) && f->memory.tcb && block_find(f->memory.tcb) == f;
}

ParkReason reason_of(const FiberRecord* f) {
  ParkReason r = f->wait.reason;
  const char* what;
  do {
    what = r.what;
    size_t word = strcspn(what, " ");
    for (WaitLook* l = looks; l && r.what == what; l = l->next)
      if (!strncmp(l->what, what, word) && !l->what[word]) l->look(r);
  } while (r.what != what);  // a look has replaced the reason by another, which has a look of its own
  if (!is_fiber(r.owner)) r.owner = nullptr;
  return r;
}

bool only_by_fibers(const char* what) {
  for (const char* listed : kByFibers)
    if (!strcmp(what, listed)) return true;
  return false;
}

bool waits_for_fibers(const FiberRecord* f) {
  if (f->run.kernel || !f->wait.reason.what) return false;
  return only_by_fibers(f->wait.reason.what) || only_by_fibers(reason_of(f).what);
}

// ---- the report ----

// Keeps signals that a write to stderr may raise from the program: takes them away before it restores the mask.
class NoSignals {
 public:
  NoSignals() {
    uint64_t set = bits();
    raw_syscall(SYS_rt_sigprocmask, SIG_BLOCK, arg(&set), arg(&old_), 8);
    raw_syscall(SYS_rt_sigpending, arg(&before_), 8);
  }
  ~NoSignals() {
    uint64_t now = 0, ours;
    raw_syscall(SYS_rt_sigpending, arg(&now), 8);
    timespec at_once{};
    if ((ours = bits() & now & ~before_)) raw_syscall(SYS_rt_sigtimedwait, arg(&ours), 0, arg(&at_once), 8);
    raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&old_), 0, 8);
  }

 private:
  static uint64_t bits() { return bit(SIGPIPE) | bit(SIGTTOU) | bit(SIGXFSZ); }
  uint64_t old_ = 0, before_ = 0;
};

Who who(const FiberRecord* f) { return {f->identity.id, f->identity.name, f == main_fiber}; }

WaitView wait_of(const FiberRecord* f, const ParkReason& r) {
  WaitView w;
  w.what = r.what;
  w.object = r.object;
  if (!r.owner) return w;
  w.owned = r.owner == f ? w.Itself : r.owner->run.state.load(std::memory_order_acquire) == State::Done ? w.Ended : w.Other;
  w.for_its_end = r.object == r.owner;
  w.owner = who(r.owner);
  return w;
}

FiberView view_of(const FiberRecord* f, uint64_t now) {
  FiberView v;
  v.who = who(f);
  v.start = reinterpret_cast<const void*>(f->identity.start);
  v.state = f->run.state.load(std::memory_order_acquire);
  v.bound = f->run.bound.load(std::memory_order_relaxed) != nullptr;
  v.preempted = f->turns.preempted.load(std::memory_order_relaxed) != 0;
  if (v.state != State::Parked || !f->wait.reason.what) return v;
  ParkReason r = reason_of(f);
  v.wait = wait_of(f, r);
  v.waited_ns = now > f->wait.since ? now - f->wait.since : 0;
  v.file = r.file;
  v.line = static_cast<uint64_t>(r.line);
  return v;
}

const FiberRecord* waits_for(const FiberRecord* f) {
  const FiberRecord* owner = reason_of(f).owner;
  return owner && is_parked(owner) ? owner : nullptr;
}

// Returns the number of fibers in the cycle that f is in, or 0 if it is in none.
uint32_t cycle_of(const FiberRecord* f, uint32_t& steps) {
  const FiberRecord* mark = f;  // moved at growing distances, so that a cycle without f is noticed too
  uint32_t n = 0, move_at = 1;
  for (const FiberRecord* g = waits_for(f); g && steps < kMostSteps; g = waits_for(g)) {
    n++;
    steps++;
    if (g == f) return n;
    if (g == mark) return 0;
    if (n == move_at) {
      mark = g;
      move_at *= 2;
    }
  }
  return 0;
}

// Returns true if f has the lowest id of its cycle. Each cycle is reported once, and begins with that member.
bool is_first_in_cycle(const FiberRecord* f, uint32_t members) {
  for (const FiberRecord* g = f; members--; g = waits_for(g))
    if (g->identity.id < f->identity.id) return false;
  return true;
}

void put_cycle(Output& out, const FiberRecord* f, uint32_t members) {
  out.begin() << "cycle: ";
  put_name(out, who(f));
  for (uint32_t i = 0; i < members; i++) {
    if (i == kMostInCycle) {
      out << ", and so on: " << members << " in all";
      break;
    }
    if (i) out << ", which";
    put_wait(out, wait_of(f, reason_of(f)));
    f = waits_for(f);
  }
  out << "\n";
}

void list_fibers(Output& out, uint64_t only, uint64_t most) {
  uint64_t now = now_ns(), listed = 0;
  each_fiber([&](const FiberRecord* f) {
    if (f->run.state.load(std::memory_order_acquire) == State::Done || (only && f->identity.id != only)) return true;
    if (listed++ < most) put_fiber(out, view_of(f, now));
    return true;
  });
  if (listed > most) out.begin() << "… and " << listed - most << " more\n";
}

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
  if (!dumper_start(0, kMostFibers) || !dumper_wait()) list_fibers(out, 0, kMostFibers);
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
    return cycles_found < kMostCycles && steps < kMostSteps;
  });
  if (!cycles_found) out.begin() << "no cycle: somebody was not woken, or ended without waking\n";
}

// Ends the process by SIGABRT, even if the program handles, blocks or ignores that signal.
void end_process() {
  uintptr_t by_default[8] = {};
  uint64_t set = bit(SIGABRT);
  raw_syscall(SYS_rt_sigaction, SIGABRT, arg(by_default), 0, 8);
  raw_syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, arg(&set), 0, 8);
  raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), sysmon_tid(), SIGABRT);
}

}  // namespace

void report_fibers(uint64_t only, uint64_t most) {
  NoSignals no_signals;
  Output out;
  list_fibers(out, only, most ? most : ~uint64_t{0});
}

void deadlock_look_by(WaitLook& look) {
  look.next = looks;
  looks = &look;
}

void deadlock_tell_by(DeadlockPart& part) {
  part.next = parts;
  parts = &part;
}

bool closes_cycle(const FiberRecord* f, bool (*for_ever)(const FiberRecord*)) {
  const FiberRecord* g = f;
  for (uint32_t steps = 0; steps < kMostInCycle * kMostCycles && for_ever(g); steps++) {
    if (!(g = reason_of(g).owner)) return false;
    if (g == f) return true;
    if (!is_parked(g)) return false;
  }
  return false;
}

void report_cycle(const FiberRecord* f) {
  NoSignals no_signals;
  Output out;
  out.begin() << "deadlock: these fibers wait for each other, whatever others do\n";
  out.begin();
  put_name(out, who(f));
  const FiberRecord* g = f;
  do {
    if (g != f) out << ", which";
    ParkReason r = reason_of(g);
    put_wait(out, wait_of(g, r));
    g = r.owner;
  } while (g != f);
  out << "\n";
}

bool deadlock_check() {
  if (options.deadlock == DeadlockPolicy::Off) return false;
  int pid = static_cast<int>(raw_syscall(SYS_getpid));
  if (reported_in == pid) return false;
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
  if (!stuck || parked == 0 || parked != live || alarm_set() || !no_other_thread(workers)) return false;
  uint64_t beats_now;
  if (look_at_workers(workers, beats_now) != Workers::Idle || beats_now != beats) return true;
  if (work_queued() || next_timer() != kNever) return true;
  reported_in = pid;
  if (exploring) explore_ends(ExploredEnd::Deadlock);
  report(workers, parked);
  if (options.deadlock == DeadlockPolicy::Abort) end_process();
  return false;
}

}  // namespace fiberthread
