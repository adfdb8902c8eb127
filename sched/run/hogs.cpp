// SPDX-License-Identifier: MIT
// Hogs: the line in which they wait, when a hog from it is a worker's next fiber, and for which fibers a running one gives way.
#include "sched/life/fork.h"
#include "sched/preempt.h"
#include "sched/run/parts.h"

namespace fiberthread {

GlobalQueue hogs, heavy_queue;

namespace {

// Looks of sysmon, about a millisecond each. Where others always wait, a few hogs get a tenth of the time, and many get more: if they come
// faster than they end, their line would grow for ever, and with it what waits for them. Between two hogs the others have a look's time at
// least.
constexpr uint32_t kMostWithoutHog = 22;
constexpr uint32_t kFewHogs = 4;     // so many more halve that time, twice as many make it a third, and so on
constexpr uint32_t kShortLine = 16;  // hogs that wait, up to which each goes on where it ran last
constexpr uint32_t kMixed = 4;       // one in so many that a worker takes is chosen at random

// Number of hogs in the line that ran on `w` last. One that goes on elsewhere finds nothing of its data in the caches near by.
uint32_t own_hogs(const Worker* w) { return w->look.own_hogs.load(std::memory_order_relaxed); }

// Returns true if these are at least the worker's share of the line. Else it shall take hogs from elsewhere.
bool has_its_share(const Worker* w, uint32_t line) {
  return line <= kShortLine && (own_hogs(w) + 1) * circulating.load(std::memory_order_relaxed) > line;
}

// Every fourth hog is one of all at random. So none waits for ever, if its worker has no slot any more or takes no hogs. And those that wait
// for each other, but are not taken for spinners, come to run at the same time, or one after the other.
FiberRecord* pop_from_line(Worker* w) {
  uint32_t line = hogs.size();
  if (line == 0) return nullptr;
  FiberRecord* f = nullptr;
  if (++w->look.hogs_taken % kMixed == 0) f = hogs.take(random_number(w) % (line < kShortLine ? line : kShortLine));
  else if (own_hogs(w) && has_its_share(w, line)) f = hogs.take_if([w](const FiberRecord* hog) { return hog->run.worker == w; });
  if (!f && !(f = hogs.pop())) return nullptr;
  f->run.worker->look.own_hogs.fetch_sub(1, std::memory_order_relaxed);
  return f;
}

// In the order in which they came, but for those that ran here last.
FiberRecord* pop_heavy(Worker* w) {
  if (heavy_queue.empty()) return nullptr;
  FiberRecord* f = ++w->look.hogs_taken % kMixed == 0 || heavy_queue.size() > kShortLine
                       ? nullptr
                       : heavy_queue.take_if([w](const FiberRecord* hog) { return hog->run.worker == w; });
  return f ? f : heavy_queue.pop();
}

}  // namespace

void push_hog(Worker* w, FiberRecord* f) {
  w->look.ran_hog = true;
  w->look.own_hogs.fetch_add(1, std::memory_order_relaxed);
  hogs.push(f);
}

// Heavy ones come first. But where others always wait, they and the line have their due in turn.
FiberRecord* pop_hog(Worker* w, bool due) {
  bool heavy_first = !due || (w->look.due_is_heavy = !w->look.due_is_heavy);
  FiberRecord* f = heavy_first ? pop_heavy(w) : nullptr;
  if (f && !due) return f;
  if (!f) f = pop_from_line(w);
  if (!f && !heavy_first) f = pop_heavy(w);
  if (f) w->look.ran_hog = true;
  return f;
}

bool hogs_are_next_slow(Worker* w) {
  if (w->look.ran_hog) {  // the time that a hog has had does not count, nor the slice after which a fiber is found to be one
    w->look.ran_hog = false;
    w->look.without_hog.store(0, std::memory_order_relaxed);
    return false;
  }
  return hogs_wait() && w->look.without_hog.load(std::memory_order_relaxed) * (1 + hogs.size() / kFewHogs) >= kMostWithoutHog;
}

void next_is_hog(Worker* w) {
  w->look.ran_hog = false;
  w->look.without_hog.store(kMostWithoutHog, std::memory_order_relaxed);
}

Waiting preempt_wanted_by(FiberRecord* f) {
  if (__builtin_expect(exploring, 0) && !explore_stuck()) return Waiting::Nobody;
  auto others = [](bool wait) { return wait ? Waiting::Others : Waiting::Nobody; };
  Worker* w = f->run.worker;
  if (Worker* b = f->run.bound.load(std::memory_order_relaxed)) return others(b != w);
  if (w->run.revoked.load(std::memory_order_relaxed) == kTaken || !w->run.slot || slot_has_work(w->run.slot) || !global_queue.empty())
    return Waiting::Others;
  if (is_reserve(w->run.slot)) return others(is_hog(f) || runs_long(w));
  return !heavy_queue.empty() ? Waiting::Others : hogs.empty() ? Waiting::Nobody : Waiting::Hogs;
}

// What a hog computes with is in its CPU's caches. But some hogs wait for what another one computes.
uint8_t hog_turn(const Worker* w) {
  constexpr uint8_t kTurn = 4;
  return own_hogs(w) == 0 && has_its_share(w, hogs.size()) ? kLongestTurn : kTurn;
}

FIBERTHREAD_IN_FORK_CHILD(Slots, hogs, [](FiberRecord*) {
  hogs.reset();
  heavy_queue.reset();
})

}  // namespace fiberthread
