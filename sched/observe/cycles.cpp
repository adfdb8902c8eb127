// SPDX-License-Identifier: MIT
// A cycle of waits for mutexes, read-write locks and ends of threads, without a deadline, lasts for ever, whatever other fibers do. The watch
// goes round all fibers once a second and looks for one. A fiber's wait counts if it began before the round before: then the fiber
// was parked ever since. For sysmon stores the time of each look (recent_ns), and a park after that store has a later time. All members
// of a cycle are found parked once more when all has been read. So every owner was read while owner and waiter were parked, and the
// owner could not give the lock away.
//
// What a fiber waits for may end otherwise all the same: another thread may unlock a mutex that is not its own, or cancel a join. Such a
// report says what is true at its time.
#include "sched/observe/cycles.h"

#include "sched/accounting.h"
#include "sched/arch/arch.h"
#include "sched/explore/explore.h"
#include "sched/life/fork.h"
#include "sched/observe/deadlock.h"
#include "sched/observe/dumper.h"
#include "sched/observe/metrics.h"
#include "sched/observe/stall.h"
#include "sched/observe/waits.h"
#include "sched/worker.h"

namespace fiberthread {
namespace {

// DEFINES=-DFIBERTHREAD_CYCLE_MS=5 makes a library that would cry wolf more often.
#ifndef FIBERTHREAD_CYCLE_MS
#define FIBERTHREAD_CYCLE_MS 1000
#endif
constexpr uint64_t kRound = uint64_t{FIBERTHREAD_CYCLE_MS} * 1'000'000;
constexpr uint32_t kQuiet = 4;           // a cycle is found in the second one, a lock that is held for long in the fourth
constexpr uint64_t kPause = 20'000'000;  // from one part of a round to the next
constexpr uint32_t kPart = 16;           // extents of 64 fibers, which takes some 20 µs
constexpr uint32_t kMostReports = 10;    // in a process
constexpr uint64_t kSample = 512;        // stacks that are looked at in a round
constexpr uint64_t kSampleUs = 1000;     // and for how long at most in all, which is enough for that as a rule

struct Watch {
  BlockPlace place;
  bool under_way = false;
  uint64_t due = 0, now = 0;
  uint64_t began = 0, began_before = 0;  // this round or the last one, and the one before
  uint64_t beats = 0;                    // as count_beats() counted them then
  WatchFindings findings, last;          // of this round, and of the one before
  struct {
    uint64_t every, turn, stacks, sampled, bytes, cycles;  // each so many-th is looked at; counts of this round
  } sample = {};
  uint32_t quiet = 0;  // rounds in a row since whose beginning nothing ran
  struct {
    const FiberRecord* first;
    uint32_t serial;
  } reported[kMostReports] = {};
  uint32_t reports = 0;
};
constinit Watch watch;

bool stuck(const FiberRecord* f) {
  uint64_t since = __atomic_load_n(&f->wait.since, __ATOMIC_RELAXED);
  return is_parked(f) && !f->run.kernel && f->wait.reason.what && since % 2 == 0 && since < watch.began_before;
}

uint64_t round() { return stalls_watched() && stall_limit() / 2 < kRound ? stall_limit() / 2 : kRound; }

// Returns a number that grows when a fiber starts to run, and while one computes. A fiber that has computed for long may park for ever without
// a switch before, and its park does not wake sysmon.
uint64_t count_beats() {
  uint64_t beats = 0;
  for (Worker* w = all_workers(); w; w = w->thread.all_next) {
    beats += w->run.heartbeat.load(std::memory_order_relaxed);
    if (w->run.running.load(std::memory_order_relaxed)) beats += cpu_time_of_thread(w->thread.tid);
  }
  return beats;
}

// Returns how much of the stack is in memory, from its top down to the first half megabyte of which nothing is. The fiber may end meanwhile,
// and its stack may be unmapped: then the kernel says so.
uint64_t resident_bytes(const FiberRecord* f) {
  const uintptr_t page = page_size();
  unsigned char pages[128];
  uintptr_t low = (reinterpret_cast<uintptr_t>(f->memory.stack_low) + page - 1) & ~(page - 1);
  uintptr_t end = (reinterpret_cast<uintptr_t>(f->memory.stack_high) + page - 1) & ~(page - 1);
  uint64_t sum = 0;
  while (end > low) {
    uintptr_t begin = end - low > sizeof pages * page ? end - sizeof pages * page : low;
    // The process's own stack is mapped only as far as it was used. What is left out there is less than such a part.
    if (raw_syscall(SYS_mincore, static_cast<long>(begin), static_cast<long>(end - begin), arg(pages)) != 0) break;
    uint64_t n = 0;
    for (size_t i = 0; i < (end - begin) / page; i++) n += pages[i] & 1;
    if (!n) break;
    sum += n;
    end = begin;
  }
  return sum * page;
}

void sample_begins() {
  auto& s = watch.sample;
  s = {live_fibers() / kSample + 1, s.turn + 1, 0, 0, 0, 0};
}

void sample(const FiberRecord* f) {
  auto& s = watch.sample;
  if ((s.stacks++ + s.turn) % s.every || s.cycles > kSampleUs * cycles_per_us) return;
  uint64_t from = cycles();
  s.bytes += resident_bytes(f);
  s.sampled++;
  s.cycles += cycles() - from;
}

void look_at(FiberRecord* f) {
  State state = f->run.state.load(std::memory_order_relaxed);
  if (state == State::Done) return;
  watch.findings.stack_bytes += static_cast<uint64_t>(f->memory.stack_high - f->memory.stack_low);
  if (metrics_wanted()) sample(f);
  uint64_t since = __atomic_load_n(&f->wait.since, __ATOMIC_RELAXED);
  if (state == State::Parked && since && since < watch.findings.oldest_wait) watch.findings.oldest_wait = since;
  if (stalls_watched()) stall_visit(f, watch.now);
  if (options.deadlock == DeadlockPolicy::Off || watch.reports == kMostReports || !stuck(f) || !in_cycle(f, stuck)) return;
  uint32_t members = in_cycle(f, stuck);
  if (!members) return;
  // Each cycle is reported once, by its member with the lowest id. The count ends the loop even if the waits change.
  for (const FiberRecord* g = reason_of(f).owner; g && --members; g = reason_of(g).owner)
    if (g->identity.id < f->identity.id) return;
  for (uint32_t i = 0; i < watch.reports; i++)
    if (watch.reported[i].first == f && watch.reported[i].serial == f->identity.serial) return;
  // Where all fibers are stuck, the report of all has this cycle too. Sysmon looks for that after a rest, which a loaded machine makes long. If
  // it must ask again, the next round finds the cycle again.
  if (deadlock_check() || deadlock_reported()) return;
  watch.reported[watch.reports++] = {f, f->identity.serial};
  uint64_t ids[kMostDumped];
  uint32_t n = report_cycle(f, ids, kMostDumped);
  if (options.deadlock == DeadlockPolicy::Abort) {
    if (!dumper_start(0, ids, n) || !dumper_wait()) report_fibers(0, ids, n);
    deadlock_ends_process();
  }
  dump_request_of(ids, n);
}

FIBERTHREAD_IN_FORK_CHILD(Observers, cycles, [](FiberRecord*) { watch = {}; })

}  // namespace

uint64_t cycles_look(uint64_t now) {
  if ((options.deadlock == DeadlockPolicy::Off && !metrics_wanted() && !stalls_watched()) || exploring) return kNever;
  if (now < watch.due) return watch.due;
  watch.now = now;
  if (deadlock_reported()) return kNever;  // with all cycles
  if (!watch.under_way) {
    uint64_t beats = count_beats();
    // After some rounds in which nothing has run, the next one would find what they have found.
    watch.quiet = beats == watch.beats ? watch.quiet + 1 : 0;
    if (watch.quiet > kQuiet) return kNever;
    watch.beats = beats;
    watch.began_before = watch.began;
    watch.began = now;
    watch.place = {};
    watch.under_way = true;
    watch.findings = {};
    sample_begins();
    if (!main_fiber->memory.block) look_at(main_fiber);
  }
  uint32_t n = 0;
  while ((watch.under_way = block_each_at(watch.place, look_at)) && ++n < kPart) {
  }
  if (!watch.under_way) {
    auto& s = watch.sample;
    if (s.sampled)
      watch.findings.resident_bytes = static_cast<uint64_t>(static_cast<double>(s.bytes) / static_cast<double>(s.sampled) *
                                                            static_cast<double>(s.stacks));
    watch.last = watch.findings;
  }
  watch.due = watch.under_way ? now + kPause : watch.began + round();
  return watch.due;
}

WatchFindings watch_findings() { return watch.last; }

uint64_t deadlocks() { return watch.reports + deadlock_reported(); }

}  // namespace fiberthread
