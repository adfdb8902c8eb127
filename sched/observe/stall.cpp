// SPDX-License-Identifier: MIT
#include "sched/observe/stall.h"

#include <string.h>

#include "sched/accounting.h"
#include "sched/arch/arch.h"
#include "sched/arch/context.h"
#include FIBERTHREAD_CPU(interrupted.h)
#include FIBERTHREAD_CPU(registers.h)
#include "sched/large.h"
#include "sched/life/fork.h"
#include "sched/observe/dumper.h"
#include "sched/observe/observe.h"
#include "sched/observe/waits.h"
#include "sched/preempt.h"
#include "sched/worker.h"

namespace fiberthread {

FIBERTHREAD_LARGE constinit StallSample stall_sample;

namespace {

constexpr uint64_t kBetweenReports = 60'000'000'000;  // ns
constexpr uint64_t kPatience = 1'000'000'000;         // ns until a worker must have copied its fiber; it may lack a CPU

uint64_t limit = 0;
char stall_mark;  // its address in a signal's value says what the signal is for

// Sysmon's own but for the counts, which metrics read.
std::atomic<uint64_t> counts[static_cast<int>(Stall::Count)];
struct Watch {
  uint64_t next_report = 0, asked_at = 0;
  // What was counted last. A stall counts once.
  uint32_t ready_fiber = 0, ready_queued = 0;
  const void* lock = nullptr;
  uint64_t lock_since = 0;
  // A lock that a fiber has waited for, and its owner, as of an earlier round.
  struct Seen {
    const void* lock = nullptr;
    const FiberRecord* owner = nullptr;
    uint32_t serial = 0;
    uint64_t since = 0, first_seen = 0;
  } seen[16];
  uint32_t next_seen = 0;
};
constinit Watch watch;

void count(Stall kind) { counts[static_cast<int>(kind)].fetch_add(1, std::memory_order_relaxed); }

// Of a fiber that is off its stack. It may be woken and end meanwhile: then there is no sample.
bool copy_waiting(const FiberRecord* f) {
  State before = f->run.state.load(std::memory_order_acquire);
  uint32_t beat = f->identity.serial;
  if (before != State::Parked && before != State::Queued) return false;
  auto* from = static_cast<const char*>(f->context.sp);
  SavedFrame frame;
  if (from < f->memory.stack_low || from >= f->memory.stack_high || copy_own(&frame, from, sizeof frame) != sizeof frame) return false;
  StallSample& s = stall_sample;
#define TAKE(name, number) \
  s.registers[number] = frame.name; \
  s.known |= uint64_t{1} << (number);
  s.known = 0;
  FIBERTHREAD_SAVED_REGISTERS(TAKE)
#undef TAKE
  s.pc = frame.FIBERTHREAD_SAVED_PC;
  const char* stack = from + sizeof(SavedFrame);
  s.registers[kStackPointerNumber] = reinterpret_cast<uintptr_t>(stack);
  s.known |= uint64_t{1} << kStackPointerNumber;
  if (kPcNumber) {
    s.registers[kPcNumber] = s.pc;
    s.known |= uint64_t{1} << kPcNumber;
  }
  auto left = static_cast<uint64_t>(f->memory.stack_high - stack);
  s.size = copy_own(s.stack, stack, left < sizeof s.stack ? left : sizeof s.stack);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return f->run.state.load(std::memory_order_relaxed) == before && f->identity.serial == beat && f->context.sp == from;
}

void put(Output& out, const FiberRecord* f) { put_name(out, {f->identity.id, f->identity.name, f->identity.is_main}); }

// Has `f` copied, which keeps others waiting. The dump follows in stall_attend().
void take_sample(const FiberRecord* f, uint64_t now) {
  if (stall_sample.state.load(std::memory_order_acquire) != StallSample::kFree) return;
  watch.asked_at = now;
  stall_sample.fiber = f->identity.id;
  memcpy(stall_sample.name, f->identity.name, sizeof stall_sample.name);
  stall_sample.is_main = f->identity.is_main;
  stall_sample.size = stall_sample.known = 0;
  Worker* w = f->run.state.load(std::memory_order_acquire) == State::Running ? __atomic_load_n(&f->run.worker, __ATOMIC_RELAXED) : nullptr;
  if (!w) {
    stall_sample.state.store(copy_waiting(f) ? StallSample::kTaken : StallSample::kAsked, std::memory_order_release);
    return;
  }
  stall_sample.beat = w->run.heartbeat.load(std::memory_order_relaxed);
  stall_sample.state.store(StallSample::kAsked, std::memory_order_release);
  siginfo_t info = {};
  info.si_signo = kPreemptSignal;
  info.si_code = SI_QUEUE;
  info.si_value.sival_ptr = &stall_mark;
  signal_worker(w, kPreemptSignal, &info);
}

// Returns true if a line may be written about it now.
bool may_report(uint64_t now) {
  if (now < watch.next_report || stall_sample.state.load(std::memory_order_acquire) != StallSample::kFree) return false;
  watch.next_report = now + kBetweenReports;
  return true;
}

Output& begin(Output& out) { return out.begin() << "stall: "; }

// f has been ready for too long. Returns the fiber that has had its worker for longest meanwhile.
const FiberRecord* runs_longest(uint64_t now, uint64_t& ran) {
  const FiberRecord* longest = nullptr;
  ran = 0;
  for (Worker* w = all_workers(); w; w = w->thread.all_next) {
    const FiberRecord* f = w->run.running.load(std::memory_order_relaxed);
    if (!f || !__atomic_load_n(&w->run.slot, __ATOMIC_RELAXED) || now < w->notes.beat_at || now - w->notes.beat_at < ran) continue;
    ran = now - w->notes.beat_at;
    longest = f;
  }
  return longest;
}

void ready_for_long(const FiberRecord* f, uint64_t waited, uint64_t now) {
  uint32_t queued = f->traced.queued;
  if (watch.ready_fiber == f->identity.id && watch.ready_queued == queued) return;
  watch.ready_fiber = f->identity.id;
  watch.ready_queued = queued;
  count(Stall::Ready);
  if (!may_report(now)) return;
  uint64_t ran;
  const FiberRecord* at_fault = runs_longest(now, ran);
  NoSignals no_signals;
  Output out;
  put(begin(out), f);
  put_seconds(out << " is ready to run for ", waited);
  if (at_fault) {
    put(out << "; ", at_fault);
    put_seconds(out << " runs for ", ran);
    take_sample(at_fault, now);
  }
  out << "\n";
}

void lock_for_long(const FiberRecord* f, const ParkReason& reason, uint64_t since, uint64_t now) {
  if (watch.lock == reason.object && watch.lock_since == since) return;
  watch.lock = reason.object;
  watch.lock_since = since;
  count(Stall::Lock);
  if (!may_report(now)) return;
  NoSignals no_signals;
  Output out;
  put(begin(out), f);
  put_seconds(out << " waits for " << reason.what << " " << reason.object << " for ", now - since);
  put(out << "; it is held by ", reason.owner);
  out << "\n";
  take_sample(reason.owner, now);
}

FIBERTHREAD_IN_FORK_CHILD(Observers, stall, [](FiberRecord*) {
  stall_sample.state.store(StallSample::kFree);
  watch = {};
})

}  // namespace

const char* stall_name(Stall kind) {
  constexpr const char* kNames[] = {"ready", "stuck", "lock"};
  return kNames[static_cast<int>(kind)];
}

uint64_t stalls(Stall kind) { return counts[static_cast<int>(kind)].load(std::memory_order_relaxed); }

void stall_after(uint32_t ms) {
  limit = uint64_t{ms} * 1'000'000;
  observing.fetch_or(kObserveDelay, std::memory_order_relaxed);
}

bool stalls_watched() { return limit != 0; }

uint64_t stall_limit() { return limit; }

void stall_visit(FiberRecord* f, uint64_t now) {
  State state = f->run.state.load(std::memory_order_acquire);
  if (state == State::Queued) {
    uint64_t waited = queued_for(f);
    if (waited > limit && f->run.state.load(std::memory_order_acquire) == State::Queued) ready_for_long(f, waited, now);
    return;
  }
  uint64_t since = __atomic_load_n(&f->wait.since, __ATOMIC_RELAXED);
  if (state != State::Parked || f->run.kernel || !f->wait.reason.what || now < since + limit / 2) return;
  ParkReason reason = reason_of(f);
  const FiberRecord* owner = reason.owner;
  // A wait for an end is a wait on purpose.
  if (!owner || owner == f || owner == reason.object) return;
  for (auto& s : watch.seen) {
    if (s.lock != reason.object || s.owner != owner || s.serial != owner->identity.serial || s.since != since) continue;
    // It was the owner's at each round since then, as far as could be seen.
    if (now - since > limit && now - s.first_seen >= limit / 2) lock_for_long(f, reason, since, now);
    return;
  }
  for (auto& s : watch.seen)
    if (s.lock == reason.object && s.since == since) {  // another has it by now
      s = {reason.object, owner, owner->identity.serial, since, now};
      return;
    }
  watch.seen[watch.next_seen++ % 16] = {reason.object, owner, owner->identity.serial, since, now};
}

void stall_look_at(Worker* w, uint64_t now) {
  const FiberRecord* f = w->run.running.load(std::memory_order_relaxed);
  uint32_t beat = w->notes.heartbeat;
  if (!f || !__atomic_load_n(&w->run.slot, __ATOMIC_RELAXED) || w->run.revoked.load(std::memory_order_relaxed) == kTaken ||
      now < w->notes.beat_at + limit / 2)
    return;
  if (w->notes.stall_beat != beat) {
    w->notes.stall_beat = beat;
    w->notes.stall_since = w->notes.beat_at;
    w->notes.stall_at = now;
    w->notes.stall_cpu = cpu_time_of_thread(w->thread.tid);
    return;
  }
  if (!w->notes.stall_at || now < w->notes.stall_since + limit) return;
  // One that sleeps in the kernel, as in waitpid(), keeps nobody else from a worker. If it keeps a lock, that will be found. But it may as well
  // have lacked a CPU, so its time counts anew from here.
  uint64_t cpu = cpu_time_of_thread(w->thread.tid), time = now - w->notes.stall_at;
  if (cpu - w->notes.stall_cpu < time / 16) {
    w->notes.stall_since = w->notes.stall_at = now;
    w->notes.stall_cpu = cpu;
    return;
  }
  w->notes.stall_at = 0;
  count(Stall::Stuck);
  if (!may_report(now)) return;
  NoSignals no_signals;
  Output out;
  put(begin(out), f);
  put_seconds(out << " runs for ", now - w->notes.stall_since);
  out << " without a wait\n";
  take_sample(f, now);
}

void stall_attend(uint64_t now) {
  uint32_t state = stall_sample.state.load(std::memory_order_acquire);
  if (__builtin_expect(state == StallSample::kFree, 1) || !watch.asked_at) return;
  if (state != StallSample::kTaken) {
    if (now < watch.asked_at + kPatience) return;
    // It runs elsewhere by now, or does not run at all.
    if (!stall_sample.state.compare_exchange_strong(state, StallSample::kFree, std::memory_order_acq_rel)) return;
    watch.asked_at = 0;
    return;
  }
  watch.asked_at = 0;
  dump_request_of(&stall_sample.fiber, 1, true);  // frees the sample at its end
}

void stall_free_sample() { stall_sample.state.store(StallSample::kFree, std::memory_order_release); }

bool stall_on_signal(const siginfo_t* info, const ucontext_t* uc) {
  if (info->si_code != SI_QUEUE || info->si_value.sival_ptr != &stall_mark) return false;
  FiberRecord* f = tls_current;
  StallSample& s = stall_sample;
  uint32_t asked = StallSample::kAsked;
  if (!f || f->run.kernel || f->identity.id != s.fiber || f->run.worker->run.heartbeat.load(std::memory_order_relaxed) != s.beat ||
      !s.state.compare_exchange_strong(asked, StallSample::kCopying, std::memory_order_acq_rel))
    return true;
  s.known = interrupted_registers(uc, s.registers);
  s.pc = interrupted_pc(uc);
  auto* sp = reinterpret_cast<const char*>(interrupted_sp(uc));
  if (sp >= f->memory.stack_low && sp < f->memory.stack_high) {
    auto left = static_cast<uint64_t>(f->memory.stack_high - sp);
    s.size = left < sizeof s.stack ? left : sizeof s.stack;
    memcpy(s.stack, sp, s.size);
  }
  s.state.store(StallSample::kTaken, std::memory_order_release);
  return true;
}

}  // namespace fiberthread
