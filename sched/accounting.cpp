// SPDX-License-Identifier: MIT
#include "sched/accounting.h"

#include <errno.h>
#include <sys/resource.h>
#include <time.h>

#include "sched/arch/arch.h"
#include "sched/syscall.h"
#include "sched/observe/observe.h"

namespace fiberthread {

namespace {
std::atomic<bool> no_clocks_of_others{false};  // a filter refuses them
}

uint64_t cpu_time_of_thread(int tid) {
  timespec ts{};
  if (tid && no_clocks_of_others.load(std::memory_order_relaxed)) return 0;
  // The kernel's encoding of a thread's CPU clock.
  long r = raw_syscall(SYS_clock_gettime, tid ? (~static_cast<long>(tid) << 3) | 6 : CLOCK_THREAD_CPUTIME_ID, arg(&ts));
  if (__builtin_expect(tid && (r == -ENOSYS || r == -EPERM), 0)) no_clocks_of_others.store(true, std::memory_order_relaxed);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec);
}

namespace {
constexpr uint64_t kChanging = ~uint64_t{0};  // value of a mark while the time before it is being given
}

// A stint shorter than kShortUs is measured by the cycle counter. Reading the kernel's clock takes a microsecond, a tenth of what a server
// does for a request. A longer stint is looked up, because the worker may have lost the CPU meanwhile. The next look finds what was given
// too much, and the fibers after it get less.
constexpr uint64_t kShortUs = 60, kLookEachUs = 500;

void account(Worker* w, FiberRecord* f, Account how) {
  uint64_t c = cycles(), stint = c - w->cpu.cycles, mark = w->cpu.mark.load(std::memory_order_relaxed), now;
  w->cpu.cycles = c;
  if (f && how == Account::Cheap && stint < kShortUs * cycles_per_us && c - w->cpu.looked < kLookEachUs * cycles_per_us) {
    now = mark + stint * 1000 / cycles_per_us;
  } else {
    w->cpu.looked = c;
    now = cpu_time_of_thread(0);
    if (now < mark) now = mark;  // so much has been given already
  }
  if (f) {
    // The release store that follows publishes this one too.
    w->cpu.mark.store(kChanging, std::memory_order_relaxed);
    f->cpu.given.store(f->cpu.given.load(std::memory_order_relaxed) + now - mark, std::memory_order_release);
  }
  w->cpu.mark.store(now, std::memory_order_release);
}

void account_tick() {
  FiberRecord* f = tls_current;
  if (!f || f->run.kernel || observed(kObserveCpu)) return;
  account(f->run.worker, f);
}

namespace {
uint64_t as_seen_by_another(FiberRecord* f) {
  constexpr int kLooks = 16;
  for (int i = 0; i < kLooks; i++) {
    uint64_t given = f->cpu.given.load(std::memory_order_acquire);
    Worker* w = __atomic_load_n(&f->run.worker, __ATOMIC_RELAXED);
    if (!w || w->run.running.load(std::memory_order_acquire) != f) break;
    uint64_t mark = w->cpu.mark.load(std::memory_order_acquire), now = cpu_time_of_thread(w->thread.tid);
    if (mark == kChanging) continue;
    // The fiber has run there all the time. So what it will be given when it leaves is not less than this.
    bool same = w->run.running.load(std::memory_order_acquire) == f && w->cpu.mark.load(std::memory_order_acquire) == mark;
    if (same && f->cpu.given.load(std::memory_order_acquire) == given) return given + (now > mark ? now - mark : 0);
  }
  // The fiber has just left a worker, and was given before what it used there.
  return f->cpu.given.load(std::memory_order_acquire);
}
}  // namespace

uint64_t cpu_time_of(FiberRecord* f) {
  if (!observed(kObserveCpu)) observing.fetch_or(kObserveCpu, std::memory_order_relaxed);
  Busy busy;
  // The caller's own time is given at once, because the cycles of the same stint might come to less.
  bool mine = f == tls_current;
  if (mine) account(f->run.worker, f, Account::Exact);
  uint64_t now = mine ? f->cpu.given.load(std::memory_order_relaxed) : as_seen_by_another(f),
           seen = f->cpu.told.load(std::memory_order_relaxed);
  // While the mark is ahead of the clock, nothing is given. But a thread that looks twice has used the CPU meanwhile.
  if (mine && now <= seen) now = seen + 1;
  // A switch that had begun before accounting was switched on has given the fiber nothing.
  while (now > seen)
    if (f->cpu.told.compare_exchange_weak(seen, now, std::memory_order_relaxed)) return now;
  return seen;
}

namespace {

// The fiber's counts. While it runs, they are less by those of its kernel thread. TLS belongs to the fiber. Not reset with the block:
// Cpu::counts_usage tells whether they are of this fiber.
constinit thread_local Usage counted;

Usage kernels_counts(int who) {
  rusage u{};
  raw_syscall(SYS_getrusage, who, arg(&u));
  auto number = [](long n) { return static_cast<uint64_t>(n); };
  return {number(u.ru_minflt), number(u.ru_majflt), number(u.ru_inblock), number(u.ru_oublock), number(u.ru_nvcsw), number(u.ru_nivcsw)};
}

// Adds `sign` times b to a.
void add(Usage& a, const Usage& b, uint64_t sign) {
  a.minor_faults += sign * b.minor_faults;
  a.major_faults += sign * b.major_faults;
  a.blocks_in += sign * b.blocks_in;
  a.blocks_out += sign * b.blocks_out;
  a.voluntary += sign * b.voluntary;
  a.involuntary += sign * b.involuntary;
}

constexpr uint64_t kPlus = 1, kMinus = ~uint64_t{0};

}  // namespace

void usage_leaves(bool waits) {
  add(counted, kernels_counts(RUSAGE_THREAD), kPlus);
  (waits ? counted.voluntary : counted.involuntary)++;
}

void usage_arrives() { add(counted, kernels_counts(RUSAGE_THREAD), kMinus); }

Usage usage_of_caller() {
  FiberRecord* me = self();
  if (!observed(kObserveCpu)) observing.fetch_or(kObserveCpu, std::memory_order_relaxed);
  Busy busy;  // it stays on its kernel thread
  if (!me->cpu.counts_usage) {
    counted = me->identity.is_main ? kernels_counts(RUSAGE_SELF) : Usage{};
    usage_arrives();
    me->cpu.counts_usage = true;
  }
  Usage now = counted;
  add(now, kernels_counts(RUSAGE_THREAD), kPlus);
  return now;
}

}  // namespace fiberthread
