// SPDX-License-Identifier: MIT
#include "sched/observe/waits.h"

#include <signal.h>
#include <string.h>

#include "sched/worker.h"

namespace fiberthread {
namespace {

constexpr uint32_t kMostInCycle = 20;  // members that a report names
constexpr uint32_t kLongest = 200;     // members that in_cycle() counts

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

// Returns true if `f` is a fiber's record. Owners are read from the program's memory, which may hold anything.
bool is_fiber(const FiberRecord* f) {
  if (f == main_fiber) return true;
  return f && block_has_record(f) && f->memory.tcb && block_find(f->memory.tcb) == f;
}

bool only_by_fibers(const char* what) {
  for (const char* listed : kByFibers)
    if (!strcmp(what, listed)) return true;
  return false;
}

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

}  // namespace

void wait_look_by(WaitLook& look) {
  look.next = looks;
  looks = &look;
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

bool waits_for_fibers(const FiberRecord* f) {
  if (f->run.kernel || !f->wait.reason.what) return false;
  return only_by_fibers(f->wait.reason.what) || only_by_fibers(reason_of(f).what);
}

uint32_t in_cycle(const FiberRecord* f, bool (*stuck)(const FiberRecord*)) {
  const FiberRecord* g = f;
  for (uint32_t members = 0; members < kLongest && stuck(g);) {
    members++;
    if (!(g = reason_of(g).owner)) return 0;
    if (g == f) return members;
    if (!is_parked(g)) return 0;
  }
  return 0;
}

uint32_t cycle_of(const FiberRecord* f, uint32_t& steps) {
  const FiberRecord* mark = f;  // moved at growing distances, so that a cycle without f is noticed too
  uint32_t n = 0, move_at = 1;
  for (const FiberRecord* g = waits_for(f); g && steps < kMostLinks; g = waits_for(g)) {
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

bool is_first_in_cycle(const FiberRecord* f, uint32_t members) {
  for (const FiberRecord* g = f; members--; g = waits_for(g))
    if (g->identity.id < f->identity.id) return false;
  return true;
}

void put_cycle(Output& out, const FiberRecord* f, uint32_t members) {
  out.begin() << "cycle: ";
  put_name(out, who(f));
  for (uint32_t i = 0; i < members && f; i++) {
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

uint32_t report_cycle(const FiberRecord* f, uint64_t* ids, uint32_t most) {
  NoSignals no_signals;
  Output out;
  out.begin() << "deadlock: these fibers wait for each other, whatever others do\n";
  uint32_t members = 0, n = 0;
  const FiberRecord* g = f;
  do {
    if (n < most) ids[n++] = g->identity.id;
    members++;
    g = reason_of(g).owner;
  } while (g && g != f && members < kLongest);
  put_cycle(out, f, members);
  return n;
}

void put_fibers(Output& out, uint64_t most, const uint64_t* only, uint32_t n) {
  uint64_t now = now_ns(), listed = 0;
  auto wanted = [&](uint64_t id) {
    for (uint32_t i = 0; i < n; i++)
      if (only[i] == id) return true;
    return n == 0;
  };
  each_fiber([&](const FiberRecord* f) {
    if (f->run.state.load(std::memory_order_acquire) == State::Done || !wanted(f->identity.id)) return true;
    if (listed++ < most) put_fiber(out, view_of(f, now));
    return true;
  });
  if (listed > most) out.begin() << "… and " << listed - most << " more\n";
}

namespace {
uint64_t signals_of_writes() {
  auto bit = [](int sig) { return uint64_t{1} << (sig - 1); };
  return bit(SIGPIPE) | bit(SIGTTOU) | bit(SIGXFSZ);
}
}  // namespace

NoSignals::NoSignals() {
  uint64_t set = signals_of_writes();
  raw_syscall(SYS_rt_sigprocmask, SIG_BLOCK, arg(&set), arg(&old_), 8);
  raw_syscall(SYS_rt_sigpending, arg(&before_), 8);
}

NoSignals::~NoSignals() {
  uint64_t now = 0, ours;
  raw_syscall(SYS_rt_sigpending, arg(&now), 8);
  timespec at_once{};
  if ((ours = signals_of_writes() & now & ~before_)) raw_syscall(SYS_rt_sigtimedwait, arg(&ours), 0, arg(&at_once), 8);
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, arg(&old_), 0, 8);
}

}  // namespace fiberthread
