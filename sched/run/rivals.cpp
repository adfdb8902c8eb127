// SPDX-License-Identifier: MIT
// How many slots are held back because other programs want the CPUs.
//
// The clients of a server may run on the same machine. Each worker then takes the CPU from them, and loses its own with a queue full of fibers.
// One worker fewer may serve more requests, and each sooner. Or not, if the rival only computes. So sysmon tries it, and keeps what makes
// fibers go on more often, or as often on CPUs that nobody takes away. Only where the kernel takes the CPU from workers that switch often, or
// whose event loops get many events; only if the program and its user have not said how many workers they want.
#include "sched/run/rivals.h"

#include <sys/resource.h>

#include "sched/life/fork.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"

namespace fiberthread {

namespace {

constexpr uint64_t kWindow = 50'000'000;  // ns of one measurement
constexpr uint64_t kSettle = 10'000'000;  // ns from a change to the measurement
constexpr uint32_t kWindows = 4;          // of a try: single ones differ by a third
constexpr uint64_t kBusy = 20'000;        // switches and events in a second; those who make fewer compute
// Those who compute have hogs in the queue at more than one look of so many. Event loops that always find events are such hogs now and then.
constexpr uint32_t kHogLooks = 8;
constexpr uint64_t kRivals = 100;  // times in a second that the kernel takes the CPU away
constexpr uint64_t kUnused = 15;   // percent of the time of the CPUs for its slots that the process lacks then; sysmon takes less

uint64_t mean(uint64_t old, uint64_t now, uint32_t weight) { return (old * (weight - 1) + now) / weight; }

}  // namespace

bool SlotsHeldBack::wants_sample(uint64_t now, bool hogs) {
  looks_++;
  hog_looks_ += hogs;
  return now >= settles_at_ && (settles_at_ || now >= begun_.at + kWindow);
}

void SlotsHeldBack::give_back() {
  held_ = 0;
  trying_ = Try::None;
  begun_ = {};
  settles_at_ = 0;
  looks_ = hog_looks_ = 0;
  windows_ = 0;
}

void SlotsHeldBack::put_off(uint64_t now, uint64_t& pause) {
  next_try_ = now + pause;
  if (pause < kLongestPause) pause *= 2;
}

void SlotsHeldBack::hold(uint32_t n, uint64_t now) {
  held_ = n;
  settles_at_ = now + kSettle;
  windows_ = 0;
}

uint32_t SlotsHeldBack::take(const Sample& s, uint32_t slots) {
  Sample b = begun_;
  begun_ = s;
  if (settles_at_) {
    settles_at_ = 0;
    looks_ = hog_looks_ = 0;
    return held_;
  }
  uint64_t ns = s.at - b.at;
  if (!b.at || ns >= 4 * kWindow) {
    // Sysmon has rested meanwhile.
    give_back();
    begun_ = s;
    return held_;
  }
  auto in_a_second = [&](uint64_t n) { return n * 1'000'000'000 / ns; };
  decide(s.at, slots, in_a_second(s.done - b.done), in_a_second(s.taken - b.taken), in_a_second(s.used - b.used));
  return held_;
}

// Called once a window is over. For each second: how often fibers went on or got events, how often the CPU was taken away, the CPU time.
void SlotsHeldBack::decide(uint64_t now, uint32_t slots, uint64_t rate, uint64_t taken, uint64_t used) {
  bool computes = hog_looks_ * kHogLooks > looks_;
  looks_ = hog_looks_ = 0;
  if (rate < kBusy || computes) {
    if (trying_ == Try::Fewer) put_off(now, pause_fewer_);  // that may have come of the try
    return give_back();
  }
  windows_++;
  uint32_t weight = windows_ < 8 ? windows_ : 8;
  rate_ = mean(rate_, rate, weight);
  taken_ = mean(taken_, taken, weight);
  used_ = mean(used_, used, weight);
  bool fails = trying_ != Try::None && windows_ >= kWindows / 2 && rate_ < rate_before_ - rate_before_ / 8;
  if (windows_ < kWindows && !fails) return;
  if (trying_ != Try::None) {
    bool fewer = trying_ == Try::Fewer;
    trying_ = Try::None;
    uint64_t& pause = fewer ? pause_fewer_ : pause_more_;
    // Fewer workers must gain much; or do as much as all did, and have their CPUs nearly always, since then nobody waits for one that is
    // stopped. More workers must gain little.
    uint64_t all = (slots - held_) * uint64_t{1'000'000'000};
    bool in_peace = fewer && used_ > all / 100 * (100 - kUnused) && rate_ > rate_of_all_ - rate_of_all_ / 16;
    if (in_peace || rate_ > rate_before_ + rate_before_ / (fewer ? 8 : 16)) {
      pause = kFirstPause;
      next_try_ = now + kFirstPause;
      return;
    }
    put_off(now, pause);
    return hold(fewer ? held_ - 1 : held_ + 1, now);
  }
  if (now < next_try_ || windows_ < 2 * kWindows) return;
  rate_before_ = rate_;
  if (held_ == 0) rate_of_all_ = rate_;
  uint64_t here = slots - held_, all = here * 1'000'000'000;
  bool crowded = taken_ >= kRivals && used_ < all * (100 - kUnused) / 100 && used_ > all / 3;  // with less, CPUs are idle
  if (held_ && (!crowded || here == 1)) {
    trying_ = Try::More;
    hold(held_ - 1, now);
  } else if (crowded && here > 1) {
    trying_ = Try::Fewer;
    hold(held_ + 1, now);
  }
}

namespace {

SlotsHeldBack decision;
std::atomic<uint32_t> held{0};

SlotsHeldBack::Sample sample(uint64_t now) {
  SlotsHeldBack::Sample s{now};
  for (Worker* w = all_workers(); w; w = w->thread.all_next)
    s.done += __atomic_load_n(&w->counts.switches, __ATOMIC_RELAXED) + __atomic_load_n(&w->counts.events, __ATOMIC_RELAXED);
  rusage usage{};
  raw_syscall(SYS_getrusage, RUSAGE_SELF, arg(&usage));
  s.taken = static_cast<uint64_t>(usage.ru_nivcsw);
  auto ns = [](const timeval& t) { return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_usec) * 1000; };
  s.used = ns(usage.ru_utime) + ns(usage.ru_stime);
  return s;
}

void hold_back(uint32_t n) {
  if (held.exchange(n, std::memory_order_relaxed) == n) return;
  if (observed(kObserveSysmon)) debug_line("sysmon", nullptr, "other programs want the CPUs; slots held back: ", uint64_t{n});
  want_slots(slots_now());
}

}  // namespace

void count_events(long n) {
  FiberRecord* me = tls_current;
  if (n < 1 || !me || me->run.kernel) return;
  // Not under Busy: a handler of the program may wait in between, and we go on at another worker. So the addition is atomic.
  __atomic_fetch_add(&me->run.worker->counts.events, static_cast<uint64_t>(n), __ATOMIC_RELAXED);
}

uint32_t slots_now() {
  uint32_t base = base_slots(), n = held.load(std::memory_order_relaxed);
  return base > n ? base - n : 1;
}

void rivals_look(uint64_t now) {
  if (slots_are_asked_for() || base_slots() < 2 || filtered.load(std::memory_order_relaxed)) {
    decision.give_back();
    hold_back(0);
  } else if (decision.wants_sample(now, hogs_wait())) {
    hold_back(decision.take(sample(now), base_slots()));
  }
}

FIBERTHREAD_IN_FORK_CHILD(Sysmon, rivals, [](FiberRecord*) {
  held.store(0);
  decision.reset();
})

}  // namespace fiberthread
