// SPDX-License-Identifier: MIT
// How many slots are held back because other programs want the CPUs.
//
// The clients of a server may run on the same machine. Each worker then takes the CPU from them, and loses its own with a queue full of fibers.
// One worker fewer may serve more requests, and each sooner. Or not, if the rival only computes. So sysmon tries it, and keeps what makes
// fibers go on more often. Only where the kernel takes the CPU from workers that switch often; only if the program and its user have not said
// how many workers they want.
#include <sys/resource.h>

#include "sched/life/fork.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"

namespace fiberthread {

namespace {

constexpr uint64_t kWindow = 50'000'000;  // ns of one measurement
constexpr uint64_t kSettle = 10'000'000;  // ns from a change to the measurement
constexpr uint32_t kWindows = 4;          // of a try: single ones differ by a third
constexpr uint64_t kBusy = 20'000;        // switches in a second; those who make fewer compute
constexpr uint64_t kRivals = 100;         // times in a second that the kernel takes the CPU away
constexpr uint64_t kUnused = 15;          // percent of the time of the CPUs for its slots that the process lacks then; sysmon takes less
constexpr uint64_t kFirstPause = 2'000'000'000, kLongestPause = 16'000'000'000;  // ns from a try that has failed to the next

// Sysmon's own, but for `held`.
std::atomic<uint32_t> held{0};
struct Sample {
  uint64_t at = 0, switches = 0, taken = 0, used = 0;  // ns of CPU time
} begun;
uint64_t settles_at = 0;  // 0: it has settled since the last change
enum class Try { None, Fewer, More } trying = Try::None;
uint64_t next_try = 0;
// Of the measurements since the last change, the newest with a weight of 1/8; and how many these are.
uint64_t rate_here = 0, taken_here = 0, used_here = 0, rate_before = 0;
uint32_t windows = 0;
uint64_t pause_of[2] = {kFirstPause, kFirstPause};  // of Try::Fewer, of Try::More
bool computes = false;                              // hogs were queued in this window

Sample sample(uint64_t now) {
  Sample s{now};
  for (Worker* w = all_workers(); w; w = w->thread.all_next) s.switches += __atomic_load_n(&w->counts.switches, __ATOMIC_RELAXED);
  rusage usage{};
  raw_syscall(SYS_getrusage, RUSAGE_SELF, arg(&usage));
  s.taken = static_cast<uint64_t>(usage.ru_nivcsw);
  auto ns = [](const timeval& t) { return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_usec) * 1000; };
  s.used = ns(usage.ru_utime) + ns(usage.ru_stime);
  return s;
}

void hold_back(uint32_t n, uint64_t now) {
  if (observed(kObserveSysmon)) debug_line("sysmon", nullptr, "other programs want the CPUs; slots held back: ", uint64_t{n});
  held.store(n, std::memory_order_relaxed);
  want_slots(base_slots() - n);
  settles_at = now + kSettle;
  windows = 0;
}

void begin_anew() {
  trying = Try::None;
  begun = {};
  settles_at = 0;
  computes = false;
  windows = 0;
}

uint64_t mean(uint64_t old, uint64_t now, uint32_t weight) { return (old * (weight - 1) + now) / weight; }

// Called once a window is over, with how often fibers went on, how often the CPU was taken away, and the CPU time, for each second.
void decide(uint64_t now, uint64_t rate, uint64_t taken, uint64_t used) {
  uint32_t n = held.load(std::memory_order_relaxed);
  bool quiet = rate < kBusy || computes;
  computes = false;
  if (quiet) {
    if (n) hold_back(0, now);
    return begin_anew();
  }
  windows++;
  uint32_t weight = windows < 8 ? windows : 8;
  rate = rate_here = mean(rate_here, rate, weight);
  taken = taken_here = mean(taken_here, taken, weight);
  used = used_here = mean(used_here, used, weight);
  bool fails = trying != Try::None && windows >= kWindows / 2 && rate < rate_before - rate_before / 8;
  if (windows < kWindows && !fails) return;
  if (trying != Try::None) {
    bool fewer = trying == Try::Fewer;
    trying = Try::None;
    uint64_t& pause = pause_of[!fewer];
    // Fewer workers must gain much, more workers little.
    if (rate > rate_before + rate_before / (fewer ? 8 : 16)) {
      pause = kFirstPause;
      next_try = now + kFirstPause;
      return;
    }
    next_try = now + pause;
    if (pause < kLongestPause) pause *= 2;
    return hold_back(fewer ? n - 1 : n + 1, now);
  }
  if (now < next_try || windows < 2 * kWindows) return;
  rate_before = rate;
  uint64_t slots = base_slots() - n;
  uint64_t all = slots * 1'000'000'000;
  bool crowded = taken >= kRivals && used < all * (100 - kUnused) / 100 && used > all / 3;  // with less, CPUs are idle
  if (n && (!crowded || slots == 1)) {
    trying = Try::More;
    hold_back(n - 1, now);
  } else if (crowded && slots > 1) {
    trying = Try::Fewer;
    hold_back(n + 1, now);
  }
}

}  // namespace

uint32_t slots_now() {
  uint32_t base = base_slots(), n = held.load(std::memory_order_relaxed);
  return base > n ? base - n : 1;
}

void rivals_look(uint64_t now) {
  if (slots_are_asked_for() || base_slots() < 2 || filtered.load(std::memory_order_relaxed)) {
    if (held.exchange(0, std::memory_order_relaxed)) want_slots(base_slots());
    return begin_anew();
  }
  computes |= !hogs.empty();
  if (settles_at) {
    if (now < settles_at) return;
    settles_at = 0;
    begun = sample(now);
    return;
  }
  if (now < begun.at + kWindow) return;
  Sample s = sample(now);
  bool measured = begun.at && now < begun.at + 4 * kWindow;
  Sample b = begun;
  begun = s;
  if (!measured) {
    // Sysmon has rested meanwhile.
    if (held.exchange(0, std::memory_order_relaxed)) want_slots(base_slots());
    trying = Try::None;
    windows = 0;
    return;
  }
  auto in_a_second = [&](uint64_t n) { return n * 1'000'000'000 / (now - b.at); };
  decide(now, in_a_second(s.switches - b.switches), in_a_second(s.taken - b.taken), in_a_second(s.used - b.used));
}

FIBERTHREAD_IN_FORK_CHILD(Sysmon, rivals, [](FiberRecord*) {
  held.store(0);
  begin_anew();
  next_try = 0;
  pause_of[0] = pause_of[1] = kFirstPause;
})

}  // namespace fiberthread
