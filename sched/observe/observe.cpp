// SPDX-License-Identifier: MIT
#include "sched/observe/observe.h"

#include <string.h>
#include <sys/mman.h>

#include <new>

#include "sched/accounting.h"
#include "sched/arch/arch.h"
#include "sched/observe/names.h"
#include "sched/observe/text.h"
#include "sched/observe/trace.h"
#include "sched/worker.h"

namespace fiberthread {

alignas(64) std::atomic<uint32_t> observing{0};

ObservedWorker* observed_worker(Worker* w) {
  if (w->observed.by) return w->observed.by;
  char* mem = map_memory(sizeof(ObservedWorker), PROT_READ | PROT_WRITE);
  if (!mem) return nullptr;
  auto* made = new (mem) ObservedWorker;
  if (observed(kObserveTrace)) trace_make_buffer(made->trace, static_cast<uint32_t>(w->thread.tid), w->bond.fiber);
  __atomic_store_n(&w->observed.by, made, __ATOMIC_RELEASE);  // the report reads it
  return made;
}

namespace {

void count_reason(ObservedWorker& of, const char* what) {
  auto* r = of.reasons;
  auto* last = r + ObservedWorker::kReasons - 1;
  while (r != last && r->what && r->what != what) r++;
  if (!r->what) __atomic_store_n(&r->what, r == last ? "other" : what, __ATOMIC_RELEASE);
  __atomic_store_n(&r->count, r->count + 1, __ATOMIC_RELAXED);
}

// Calls put() with the caller's buffer, or with the shared buffer if the caller is no worker.
template <class Put>
void with_buffer(Put put) {
  if (Worker* w = this_worker()) {
    if (ObservedWorker* of = observed_worker(w); of && of->trace.chunk) put(of->trace);
  } else {
    TraceOthers others;
    if (others.buffer.chunk) put(others.buffer);
  }
}
void put_event(const FiberRecord* f, uint64_t at, uint64_t rest) {
  with_buffer([&](TraceBuffer& b) {
    if (trace_room(b, at)) trace_put(b, f, TraceFiber::Numbered, at, rest);
  });
}

// Records a birth, and returns its time. A look at the clock is most of the cost. So only each eighth birth has a time of its own, and the
// first after a tick of sysmon. The others have the time of the buffer's last record.
uint64_t put_birth(TraceBuffer& b, const FiberRecord* f) {
  uint64_t recent = recent_ns.load(std::memory_order_relaxed), now = b.last;
  if (recent != b.births_recent || ++b.births == 8) {
    now = cycles();
    b.births = 0;
    b.births_recent = recent;
  }
  if (!trace_room(b, now)) return now;
  FiberRecord* me = tls_current;
  if (uint32_t maker = me ? me->identity.id : 0; maker != b.maker) {
    trace_put(b, me, TraceFiber::Numbered, b.last, trace_rest(TraceKind::Makes));
    b.maker = maker;
  }
  trace_put(b, f, TraceFiber::Numbered, now, trace_rest(TraceKind::Born, reinterpret_cast<uintptr_t>(f->identity.start)));
  return now;
}

// Records that f, which w runs, was in the kernel while w had no slot. The buffer has room.
void came_back(Worker* w, const FiberRecord* f, ObservedWorker& of, uint64_t now) {
  uint64_t taken = w->observed.taken_at.exchange(0, std::memory_order_relaxed), from = ran_since(of, f, now);
  trace_put(of.trace, f, TraceFiber::Numbered, now, trace_rest(TraceKind::Blocked), taken > from ? taken : from);
}

}  // namespace

void observe_leaves(Worker* w, FiberRecord* f, Leave why) {
  uint32_t bits = observing.load(std::memory_order_relaxed);
  if (bits & kObserveCpu) {
    account(w, f);
    if (f->cpu.counts_usage && why != Leave::Done) usage_leaves(why == Leave::Park);
  }
  if (why == Leave::Park && bits & kObservePark) debug_line("park", f, "parks for ", f->wait.reason.what, f->wait.reason.object);
  if (why == Leave::Park && bits & kObserveJoin && f->wait.reason.owner && f->wait.reason.object == f->wait.reason.owner)
    debug_line("join", f, "waits for the end of ", uint64_t{f->wait.reason.owner->identity.id});
  if (why == Leave::Done && bits & kObserveJoin) debug_line("join", f, "has ended");
  if (!(bits & (kObserveStats | kObserveTrace))) return;
  ObservedWorker* of = observed_worker(w);
  if (!of) return;
  if (bits & kObserveStats && why == Leave::Park) count_reason(*of, f->wait.reason.what);
  if (!(bits & kObserveTrace) || !of->trace.chunk) return;
  TraceBuffer& b = of->trace;
  uint64_t now = cycles();
  if (!trace_room(b, now)) return;
  if (__builtin_expect(w->observed.taken_at.load(std::memory_order_relaxed) != 0, 0)) came_back(w, f, *of, now);
  if (uint64_t from = ran_since(*of, f, now); from != b.left)
    trace_put(b, nullptr, TraceFiber::Numbered, b.last, trace_rest(TraceKind::Began), from);
  static_assert(static_cast<int>(TraceKind::Park) == static_cast<int>(Leave::Park) &&
                static_cast<int>(TraceKind::Done) == static_cast<int>(Leave::Done));
  bool parks = why == Leave::Park;
  uint32_t word = parks ? trace_word(b, f->wait.reason.what) : 0;
  trace_put(b, f, TraceFiber::Named, now,
            trace_rest(static_cast<TraceKind>(why), parks ? reinterpret_cast<uintptr_t>(f->wait.reason.object) : 0, word, f->traced.wait));
  f->traced.wait = word;
  f->traced.left_at = of->began = b.left = now;
}

void observe_begins(Worker* w) {
  uint32_t bits = observing.load(std::memory_order_relaxed);
  if (bits & kObserveTrace)
    if (ObservedWorker* of = observed_worker(w)) of->began = cycles();
}

void observe_spawned(FiberRecord* f) {
  if (observed(kObserveStats)) {
    uint64_t live = live_fibers(), peak = statistics.peak.load(std::memory_order_relaxed);
    while (live > peak && !statistics.peak.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
  }
  if (!observed(kObserveTrace)) return;
  f->traced.wait = 0;
  f->traced.left_at = 0;
  with_buffer([&](TraceBuffer& b) { f->traced.left_at = put_birth(b, f); });
}

void observe_stolen(FiberRecord* f, uint32_t from_slot) { put_event(f, cycles(), trace_rest(TraceKind::Stolen, from_slot)); }

void observe_handed_over(Worker* w) {
  FiberRecord* f = w->run.running.load(std::memory_order_relaxed);
  if (observed(kObserveSysmon)) debug_line("sysmon", f, "sleeps in the kernel: its worker's slot goes to another");
  if (!observed(kObserveTrace)) return;
  uint64_t now = cycles();
  w->observed.taken_at.store(now, std::memory_order_relaxed);
  ObservedWorker* of = __atomic_load_n(&w->observed.by, __ATOMIC_ACQUIRE);
  put_event(f, now, trace_rest(TraceKind::HandedOver, of && of->trace.chunk ? of->trace.chunk->track : 0));
}

void observe_came_back(Worker* w) {
  FiberRecord* f = w->run.running.load(std::memory_order_relaxed);
  ObservedWorker* of = observed_worker(w);
  uint64_t now = cycles();
  if (f && of && of->trace.chunk && w->observed.taken_at.load(std::memory_order_relaxed) && trace_room(of->trace, now))
    came_back(w, f, *of, now);
  else w->observed.taken_at.store(0, std::memory_order_relaxed);
}

namespace {
void begin_line(Line& line, const char* word, const FiberRecord* f) {
  line << word << ": ";
  if (!f) return;
  line << (f->run.kernel ? "thread " : "fiber ") << uint64_t{f->identity.id} << " ";
  if (*f->identity.name) line.quoted(f->identity.name, sizeof f->identity.name) << " ";
}
}  // namespace

void debug_line(const char* word, const FiberRecord* f, const char* what, const char* more, const void* object) {
  Line line;
  begin_line(line, word, f);
  line << what << more;
  if (object) line << " " << object;
}

void debug_line(const char* word, const FiberRecord* f, const char* what, uint64_t number) {
  Line line;
  begin_line(line, word, f);
  line << what << number;
}

void debug_queues() {
  uint32_t n;
  Slot** all = all_slots(&n);
  for (uint32_t i = 0; i < n; i++)
    Line() << "inbox: slot " << uint64_t{i} << ": inbox " << (all[i]->inbox.empty() ? "empty" : "not empty") << ", queued "
           << uint64_t{all[i]->local.size()} << ", next " << static_cast<const void*>(all[i]->next.load(std::memory_order_relaxed));
}

// A clock of 32 bits that is never 0. Its unit is at most 0.3 µs, and it begins anew after some seconds at least, a quarter of an hour at most.
static unsigned queued_shift() { return cycles_per_us > 500 ? 7 : 0; }
static uint32_t queued_clock() { return static_cast<uint32_t>(cycles() >> queued_shift()) | 1; }

static uint64_t queued_ns(uint32_t clock) { return (uint64_t{clock} << queued_shift()) * 1000 / cycles_per_us; }

void observe_queued(FiberRecord* f) { __atomic_store_n(&f->traced.queued, queued_clock(), __ATOMIC_RELAXED); }

uint64_t queued_for(const FiberRecord* f) {
  uint32_t at = __atomic_load_n(&f->traced.queued, __ATOMIC_RELAXED);
  uint32_t now = queued_clock();
  return at && static_cast<int32_t>(now - at) > 0 ? queued_ns(now - at) : 0;
}

void observe_runs(Worker* w, FiberRecord* f) {
  if (observed(kObserveRuns)) w->look.run_began = cycles();
  if (observed(kObserveNames)) name_worker(w, f);
  if (!observed(kObserveDelay)) return;
  ObservedWorker* of = observed_worker(w);
  if (!of) return;
  uint32_t at = f->traced.queued, delay = at ? queued_clock() - at : 0;
  __atomic_store_n(&f->traced.queued, 0, __ATOMIC_RELAXED);  // a fiber that another one hands its worker is in no queue
  uint64_t ns = queued_ns(delay);
  uint32_t i = ns < delay_below(0) ? 0 : 64 - 10 - static_cast<uint32_t>(__builtin_clzll(ns));
  auto& count = of->delays[i < kDelays ? i : kDelays - 1];
  __atomic_store_n(&count, count + 1, __ATOMIC_RELAXED);
  __atomic_store_n(&of->delays_ns, of->delays_ns + ns, __ATOMIC_RELAXED);
}

void collect_delays(uint64_t (&counts)[kDelays], uint64_t& sum) {
  for (Worker* w = all_workers(); w; w = w->thread.all_next)
    if (ObservedWorker* of = __atomic_load_n(&w->observed.by, __ATOMIC_ACQUIRE)) {
      for (uint32_t i = 0; i < kDelays; i++) counts[i] += __atomic_load_n(&of->delays[i], __ATOMIC_RELAXED);
      sum += __atomic_load_n(&of->delays_ns, __ATOMIC_RELAXED);
    }
}

// The same words may be at several addresses, so the text is compared.
static void add_reason(Counts& to, const char* what, uint64_t count) {
  uint32_t i = 0;
  while (i < to.reasons && strcmp(to.reason[i].what, what)) i++;
  if (i == Counts::kMostReasons) return;
  if (i == to.reasons) to.reasons++;
  to.reason[i].what = what;
  to.reason[i].count += count;
}

void collect_counts(Counts& to) {
  to.polls = statistics.polls.load(std::memory_order_relaxed);
  to.handovers = statistics.handovers.load(std::memory_order_relaxed);
  to.spawned = fibers_spawned();
  to.fresh = statistics.fresh.load(std::memory_order_relaxed);
  to.live = live_fibers();
  for (Worker* w = all_workers(); w; w = w->thread.all_next) {
    to.switches += w->counts.switches;
    to.parks += w->counts.parks;
    to.steals += w->counts.steals;
    to.polls += w->counts.polls;
    to.preemptions += w->counts.preemptions.load(std::memory_order_relaxed);
    if (ObservedWorker* of = __atomic_load_n(&w->observed.by, __ATOMIC_ACQUIRE))
      for (auto& r : of->reasons)
        if (const char* what = __atomic_load_n(&r.what, __ATOMIC_ACQUIRE))
          add_reason(to, what, __atomic_load_n(&r.count, __ATOMIC_RELAXED));
  }
}

void report_statistics(int fd) {
  Counts c;
  collect_counts(c);
  const struct {
    const char* name;
    uint64_t n;
  } rows[] = {
      {"fibers", c.spawned},
      {"workers", workers_made()},
      {"switches", c.switches},
      {"parks", c.parks},
      {"steals", c.steals},
      {"preemptions", c.preemptions},
      {"slots", slots_wanted()},
      {"handovers", c.handovers},
      {"live", c.live},
      {"peak", statistics.peak.load() > c.live ? statistics.peak.load() : c.live},
      {"recycled", c.spawned > c.fresh ? c.spawned - c.fresh : 0},
      {"polls", c.polls},
  };
  char memory[2048];
  Text out(memory, sizeof memory);
  if (options.statistics == Report::Json) {
    out << "{\"fiberthread\":{\"pid\":" << static_cast<uint64_t>(raw_syscall(SYS_getpid));
    for (auto& row : rows) out << ",\"" << row.name << "\":" << row.n;
    out << ",\"parked_for\":{";
    for (uint32_t i = 0; i < c.reasons; i++) out << (i ? ",\"" : "\"") << c.reason[i].what << "\":" << c.reason[i].count;
    out << "}}}\n";
  } else {
    out << "fiberthread:";
    for (auto& row : rows) out << " " << row.name << "=" << row.n;
    for (uint32_t i = 0; i < c.reasons; i++) out << (i ? ", " : "; parked for ") << c.reason[i].what << " " << c.reason[i].count;
    out << "\n";
  }
  out.write_to(fd);
}

}  // namespace fiberthread
