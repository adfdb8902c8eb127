// SPDX-License-Identifier: MIT
#include "sched/explore/explore.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <initializer_list>

#include "sched/arch/arch.h"
#include "sched/embedder.h"
#include "sched/explore/step.h"
#include "sched/explore/strategy.h"
#include "sched/large.h"
#include "sched/life/fork.h"
#include "sched/scheduler.h"
#include "sched/syscall.h"
#include "sched/worker.h"

extern "C" {
[[gnu::visibility("default")]] uint32_t fiberthread_explore_memory = 0;
}

namespace fiberthread {

bool exploring = false;

namespace {

Explored* shared = nullptr;
Strategies* strategies = nullptr;
char* memory = nullptr;  // of the strategies and their table
uint64_t clock_ns = 0;
uint32_t next_step = 0;  // of the script
uint32_t asked = 0;      // before which access of the last window its fiber is stopped
bool claim_deferred = false;

// A program in virtual time begins at these, whenever it is run.
constexpr uint64_t kMonotonic = 100'000'000'000'000, kRealtime = 1'800'000'000'000'000'000;
constexpr int64_t kSecond = 1'000'000'000, kFarSeconds = 4'000'000'000;  // 126 years
constexpr uint64_t kStep = 1000, kLongStep = 100'000;
constexpr uint64_t kLong = 200'000;  // after so many points time runs faster: the program may go on until a time of its own has passed
constexpr uint32_t kStuckTicks = 50;
// In a window, in a row without an access. The first call of a function takes the dynamic linker some hundreds.
constexpr uint32_t kMostIdleSteps = 2000;
constexpr uint32_t kMostMade = 4000;        // in all windows: each takes some microseconds
constexpr uint32_t kMostCandidates = 1024;  // for one choice. Those after them wait

void mix(uint64_t n) { shared->hash = (shared->hash ^ (n + 1)) * 0x9E3779B97F4A7C15u ^ shared->hash >> 29; }

// Returns what is known of the fiber, which the launcher then knows too.
Candidate& seen(FiberRecord* f) {
  Candidate& c = strategies->of(f);
  if (c.number < kMostSeen && c.number >= shared->fibers) {
    SeenFiber& s = shared->seen[c.number];
    s.main = f == main_fiber;
    s.start = reinterpret_cast<uintptr_t>(f->identity.start);
    memcpy(s.name, f->identity.name, sizeof s.name);
    shared->fibers = c.number + 1;
  }
  return c;
}

uint32_t by_script(uint32_t usual, uint32_t limit) {
  if (next_step == shared->order.script_size) return usual;
  const Step& s = shared->script[next_step];
  if (s.accesses || s.choice != shared->choices) return usual;
  uint32_t index = shared->script[next_step++].index;
  if (index < limit) return index;
  shared->diverged = 1;
  return usual;
}

// A schedule from which steps were left out has other numbers of choices. What a fiber itself has done is the same for longer.
uint32_t by_loose_script(Candidate* const* candidates, uint32_t n, bool timer, uint32_t from, const Candidate* last, uint32_t usual) {
  if (!last) return usual;
  while (next_step < shared->order.script_size && shared->script[next_step].own == kNobody) next_step++;
  for (uint32_t i = next_step; i < shared->order.script_size; i++) {
    Step& s = shared->script[i];
    if (s.from != from || s.last != last->number || s.own != last->points) continue;
    s.own = kNobody;  // used
    if (s.to == kClock) return timer ? n : usual;
    for (uint32_t k = 0; k < n; k++)
      if (candidates[k]->number == s.to) return k;
    return from != kNobody && n > 1 ? 1 : usual;  // that one waits: any other instead
  }
  return usual;
}

constexpr size_t kTableSize = Strategies::kTable * sizeof(Candidate);

// A fiber that has not run yet has nothing but its first frame on its stack.
bool is_new(const FiberRecord* f) {
  return reinterpret_cast<uintptr_t>(f->context.sp) + sizeof(SavedFrame) ==
         (reinterpret_cast<uintptr_t>(f->memory.stack_high) & ~uintptr_t{15});
}

// Time goes on with each point and each look at a clock.
void step_clock() { clock_ns += shared->points.load(std::memory_order_relaxed) < kLong ? kStep : kLongStep; }

// Points beyond the order's, at a time and in all, which take some seconds.
constexpr uint64_t kMorePoints = 200'000, kMostMorePoints = 400 * kMorePoints;
uint64_t more_points = 0;

void note_point() {
  step_clock();
  uint64_t points = shared->points.load(std::memory_order_relaxed) + 1;
  shared->points.store(points, std::memory_order_relaxed);
  if (points <= shared->order.most + more_points) return;
  // So many points take some 40 ms where one fiber goes on alone, and what it waits for may take longer. When that has come, the fiber that it
  // wakes must have its turns once more, and a strategy may choose another 4,000 times before each of these.
  static bool came_last = false;
  bool comes = explored_outside_may_come();
  if ((comes || came_last) && more_points < kMostMorePoints) {
    constexpr long kNap[2] = {0, 1'000'000};
    if (comes) raw_syscall(SYS_nanosleep, arg(kNap), 0);
    came_last = comes;
    more_points += kMorePoints;
    return;
  }
  explore_ends(ExploredEnd::Livelock);
  raw_syscall(SYS_exit_group, 1);
}

}  // namespace

void explore_begin(const char* path) {
  long fd = raw_syscall(SYS_openat, AT_FDCWD, arg(path), O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  struct stat s;
  long p = -1;
  if (fstat(static_cast<int>(fd), &s) == 0 && s.st_size == sizeof(Explored))
    p = raw_syscall(SYS_mmap, 0, sizeof(Explored), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  raw_syscall(SYS_close, fd);
  if (p < 0 && p > -4096) return;
  shared = reinterpret_cast<Explored*>(p);
  memory = map_memory(kTableSize + sizeof(Strategies), PROT_READ | PROT_WRITE, MAP_NORESERVE);
  if (shared->order.version != kExploreVersion || !memory) return;
  clock_ns = kMonotonic;
  explore_take_order();
  if (shared->order.memory & kMemorySteps) step_init();
  exploring = true;
}

void explore_take_order() { strategies = new (memory + kTableSize) Strategies(shared->order, reinterpret_cast<Candidate*>(memory)); }

bool explore_unclaimed() { return shared->claimed.load(std::memory_order_relaxed) == 0; }

bool explore_wants_sysmon() { return shared->order.sysmon; }
void explore_has_sysmon() { shared->has_sysmon.store(1, std::memory_order_relaxed); }

void explore_defer_claim() { claim_deferred = explore_unclaimed(); }
bool explore_claim_deferred() { return claim_deferred; }

void explore_claim() {
  claim_deferred = false;
  uint32_t nobody = 0;
  auto pid = static_cast<uint32_t>(raw_syscall(SYS_getpid));
  exploring = shared->claimed.compare_exchange_strong(nobody, pid, std::memory_order_relaxed);
  if (!exploring) return;
  // How often the clock was read in the start is not the same in each run. From here on it is.
  constexpr uint64_t kWhole = kSecond;
  clock_ns = (clock_ns / kWhole + 1) * kWhole;
  // Most schedules write some pages of this. It takes less time to get them at once.
  constexpr long kPopulateWrite = 23, kSize = 5 * 4096;
  raw_syscall(SYS_madvise, arg(shared->made) & -static_cast<long>(page_size()), kSize, kPopulateWrite);
  fiberthread_explore_memory = shared->order.memory;
}

uint32_t explore_choose(FiberRecord* me, FiberRecord* (*next)(void*), void* data, bool timer, bool stop) {
  FIBERTHREAD_LARGE static Candidate* candidates[kMostCandidates];  // one thread at a time chooses, and its stack may be small
  uint32_t n = 0;
  auto add = [&](FiberRecord* f) {
    Candidate& c = seen(f);
    candidates[n++] = &c;
    if (shared->order.memory & kMemorySteps && f != me && f->identity.start && f->identity.start != explored_start && is_new(f)) {
      c.start = f->identity.start;
      f->identity.start = explored_start;
    }
  };
  if (me) add(me);
  while (FiberRecord* f = n < kMostCandidates ? next(data) : nullptr) add(f);
  uint32_t limit = n + timer, index;
  if (limit < 2) return 0;
  bool script = shared->order.strategy == Strategy::Script;
  uint32_t usual = strategies->usual(candidates, n, me != nullptr);
  const Candidate* last = me ? candidates[0] : strategies->last();  // whose doings tell where the schedule is
  if (stop) index = script ? shared->script[next_step++].index : 1 + strategies->choose(candidates + 1, n - 1, false, false);
  else if (script && shared->order.loose) index = by_loose_script(candidates, n, timer, me ? candidates[0]->number : kNobody, last, usual);
  else index = script ? by_script(usual, limit) : strategies->choose(candidates, n, me != nullptr, timer);
  uint32_t last_number = last ? last->number : kNobody, own = last ? last->points : 0;
  strategies->chosen(candidates, n, index);
  if (shared->order.log && shared->choices < kMostOffered)
    shared->offered[shared->choices] = static_cast<uint16_t>(n | (timer ? kOfferedTime : 0) | (me ? kOfferedStay : 0) |
                                                             (usual ? kOfferedSecond : 0));
  uint32_t to = index == n ? kClock : candidates[index]->number;
  if ((stop || index != usual) && shared->steps < kMostSteps) {
    Step& s = shared->made[shared->steps++];
    s = {shared->choices, index, n, kNobody, to, 0, 0, "", false, 0, 0, last_number, own};
    if (stop) {
      s.window = shared->windows - 1;
      s.accesses = asked;
    }
    if (me) {
      s.from = candidates[0]->number;
      s.pc = candidates[0]->pc;
      s.object = candidates[0]->object;
      s.after = candidates[0]->after;
      if (candidates[0]->call) strncpy(s.call, candidates[0]->call, sizeof s.call - 1);
    }
  }
  shared->choices++;
  mix(index);
  mix(to);
  if (stop) mix(shared->windows << 32 | asked);
  return index;
}

void explore_note(FiberRecord* me, const ExplorePoint& point) {
  shared->last = seen(me).number;
  if (shared->last < kMostSeen) shared->seen[shared->last].pc = point.pc;
  strategies->at_point(me, point);
  note_point();
}

void explore_fails(FiberRecord* me, uint64_t pc) {
  shared->last = seen(me).number;
  if (shared->last < kMostSeen) shared->seen[shared->last].pc = pc;
}

bool explore_stop(FiberRecord* me, const ExplorePoint& access, uint32_t others) {
  // The window was opened for the next step of the script. If the program has gone another way, there may be no such fiber.
  if (others >= kMostCandidates) others = kMostCandidates - 1;
  if (shared->order.strategy == Strategy::Script) {
    uint32_t index = shared->script[next_step].index;
    if (index == 0 || index > others) {
      next_step++;
      shared->diverged = 1;
      return false;
    }
  }
  if (!others) return false;
  seen(me);
  strategies->at_stop(me, access);
  note_point();
  return true;
}

bool explore_window(bool stopped) {
  if (!(shared->order.memory & kMemorySteps)) return false;
  uint64_t number = shared->windows++;
  bool script = shared->order.strategy == Strategy::Script;
  if (script) {
    const Step* s = next_step < shared->order.script_size ? &shared->script[next_step] : nullptr;
    asked = s && s->window == number ? s->accesses : 0;
  } else {
    asked = steps_made() < kMostMade ? strategies->window() : 0;
  }
  // Libraries may make other steps in a replay, since their code depends on addresses and the environment.
  if (asked) step_open(asked, script ? 16 * kMostIdleSteps : kMostIdleSteps, stopped);
  return asked != 0;
}

bool explore_may_fire(uint64_t due) { return due < clock_ns + shared->order.timers; }

void* (*explore_begins(FiberRecord* me))(void*) { return me->identity.start = strategies->of(me).start; }

void explore_gives_way(FiberRecord* me) { strategies->gives_way(me); }

void explore_outside() { shared->outside++; }
void explore_ends(ExploredEnd end) {
  shared->end = end;
  if (!shared->order.reports) raw_syscall(SYS_exit_group, 1);
}

bool explore_waits_for_ever(const FiberRecord* f) {
  const char* call = strategies->of(const_cast<FiberRecord*>(f)).call;
  // Read-write locks are left out. Such a lock goes on naming its last writer until the next writer has run.
  for (const char* c : {"pthread_mutex_lock", "pthread_join", "pthread_cond_wait", "mtx_lock", "thrd_join", "cnd_wait"})
    if (call && !strcmp(call, c)) return true;
  return false;
}

void explore_ends_by(const Race& race) {
  shared->race = race;
  shared->end = ExploredEnd::Race;
  // A debugger stops here.
  if (shared->order.reports) raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), raw_syscall(SYS_gettid), SIGABRT);
  raw_syscall(SYS_exit_group, 1);
}

uint32_t explore_number(FiberRecord* f) { return seen(f).number; }

bool explore_stuck() {
  static uint64_t seen = 0;
  static uint32_t ticks = 0;
  uint64_t points = shared->points.load(std::memory_order_relaxed);
  if (points != seen || step_is_open()) ticks = 0;
  seen = points;
  if (++ticks < kStuckTicks) return false;
  explore_outside();
  return true;
}

namespace {
bool time_is_virtual() { return exploring && (tls_current || this_worker()); }
int64_t in_ns(const timespec& t) { return t.tv_sec * kSecond + t.tv_nsec; }
int64_t virtual_ns(clockid_t clock) {
  return static_cast<int64_t>(clock == CLOCK_REALTIME || clock == CLOCK_TAI ? clock_ns + (kRealtime - kMonotonic) : clock_ns);
}
}  // namespace

timespec explore_kernel_time(clockid_t clock, const timespec& t) {
  timespec now{};
  if (!time_is_virtual() || t.tv_sec < 0 || t.tv_sec > kFarSeconds) return t;
  raw_syscall(SYS_clock_gettime, clock, arg(&now));
  int64_t ns = in_ns(now) + (in_ns(t) - virtual_ns(clock));
  return ns < 0 ? timespec{} : timespec{ns / kSecond, ns % kSecond};
}

void explore_waited_until(clockid_t clock, const timespec& t) {
  int64_t left = time_is_virtual() && t.tv_sec >= 0 && t.tv_sec <= kFarSeconds ? in_ns(t) - virtual_ns(clock) : 0;
  if (left > 0) clock_ns += static_cast<uint64_t>(left);
}

void explore_waited(const timespec& t) {
  if (time_is_virtual() && t.tv_sec >= 0 && t.tv_sec <= kFarSeconds) clock_ns += static_cast<uint64_t>(in_ns(t));
}

bool explore_clock(clockid_t clock, timespec* t) {
  if (!time_is_virtual()) return false;
  step_clock();
  uint64_t ns = clock_ns;
  switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
    case CLOCK_TAI: ns += kRealtime - kMonotonic; break;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME: break;
    default: return false;
  }
  *t = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  return true;
}

void explore_jump(uint64_t to_ns) {
  if (to_ns > clock_ns) clock_ns = to_ns;
}

// Two processes cannot write one schedule.
FIBERTHREAD_IN_FORK_CHILD(Start, explore, [](FiberRecord*) {
  exploring = exploring && !shared->claimed.load(std::memory_order_relaxed);
  fiberthread_explore_memory = 0;
})

}  // namespace fiberthread

using namespace fiberthread;

// For preload/explore/server.cpp. Returns the shared memory if this process, which has made no thread yet, is being explored.
extern "C" [[gnu::visibility("default")]] void* fiberthread_explore_shared() { return exploring ? shared : nullptr; }
