// SPDX-License-Identifier: MIT
// How many slots there are while fibers spin. Sysmon's own.
#pragma once
#include <cstdint>

#include "sched/accounting.h"
#include "sched/observe/observe.h"
#include "sched/preempt.h"
#include "sched/worker.h"

namespace fiberthread {

// The number of slots grows for spinners. A spinner that waits for a queued fiber does nothing else, and that fiber waits a slice for each
// spinner. So while spinners have all slots and other fibers wait, slots grow to the number of fibers to run, if that is not too many. The
// kernel then slices their workers as it does NPTL's threads. Few slots serve a greater crowd better, because all hogs take turns in one
// line. They also serve fibers that compute better, for which more kernel threads are only more switches. When there are fewer spinners,
// the slots go one by one.
//
// While fibers that run for long have all slots, and perhaps none waits, there is a reserve for those that wake up (slots.cpp).
struct Growth {
  // A fiber that goes on for so many looks, and for so much CPU time, while others wait, cannot be stopped where it is. A hog gives way at the
  // next tick, or after kLongestTurn if only hogs wait, and four ticks later where it is in libc's code then.
  static constexpr uint32_t kStuckLooks = 20;
  static constexpr uint64_t kStuckNs = 10 * kTickNs, kStuckBesideHogsNs = (kLongestTurn + 8) * kTickNs;
  static constexpr uint32_t kShrinkLooks = 100;                  // looks with fewer spinners than slots, before there is one less
  static constexpr uint32_t kMostGrowth = 4;                     // times the base
  static constexpr uint32_t kNeedsReserve = 20, kMostLong = 30;  // of long_looks: before there is a reserve, and at most

  uint32_t spinners = 0, last_spinners = 0;  // with a slot, in this look and the one before
  uint32_t run_long = 0;                     // fibers that run for long, with a slot that is not of the reserve, in this look
  uint32_t long_looks = 0;  // that found these in all such slots, less the looks that did not; never below 0, at which the reserve goes
  bool some_short = false;  // the last look did not
  uint32_t spare_looks = 0;
  Waiting last_waiting = Waiting::Nobody;

  // `waiting`: fibers in whatever queue. Without any nobody is asked to give way, and a long run says nothing. With them all long runs
  // count: the fiber may stand behind one that cannot be stopped, and the other workers do not look there while theirs go on.
  void count(Worker* w, bool progress, Waiting waiting) {
    FiberRecord* f = w->run.running.load(std::memory_order_relaxed);
    bool has_slot = __atomic_load_n(&w->run.slot, __ATOMIC_RELAXED) && w->run.revoked.load(std::memory_order_relaxed) != kTaken;
    bool now_asked = waiting == Waiting::Others && last_waiting == Waiting::Hogs;  // to give way at the next tick
    if (progress || waiting == Waiting::Nobody || now_asked || !f || !has_slot) w->notes.stuck_looks = 0;
    else if (w->notes.stuck_looks++ == 0) w->notes.stuck_cpu = cpu_time_of_thread(w->thread.tid);
    if (f && has_slot && (is_spinner(f) || is_stuck(w, waiting))) spinners++;
    if (f && has_slot && !has_reserve(w) &&
        (is_hog(f) || is_heavy(f) || w->ticks.long_run.load(std::memory_order_relaxed) == w->run.heartbeat.load(std::memory_order_relaxed)))
      run_long++;
  }

  void decide(Waiting waiting) {
    bool queued = waiting != Waiting::Nobody;
    uint32_t base = slots_now(), now = slots_wanted();
    if (queued && spinners >= now) {
      uint32_t need = now + queued_count();
      if (need <= base * kMostGrowth && want_slots(need)) {
        if (observed(kObserveSysmon)) debug_line("sysmon", nullptr, "spinners have all slots; there shall be ", uint64_t{need});
        wake_if_needed();
      }
    }
    spare_looks = now > base && spinners < now ? spare_looks + 1 : 0;
    if (spare_looks >= kShrinkLooks) {
      want_slots(now - 1);
      spare_looks = 0;
    }
    decide_reserve();
    last_spinners = spinners;
    last_waiting = waiting;
    spinners = 0;
  }

  // Before a long sleep. While there is a spinner, the slots stay: a program whose spinners hand work on is quiet between two looks.
  void settle() {
    if (last_spinners == 0 && slots_now() < slots_wanted()) want_slots(slots_now());
    if (!some_short) return;
    long_looks = 0;
    want_reserve(0);
  }

 private:
  void decide_reserve() {
    bool all = run_long && run_long >= slots_wanted();
    run_long = 0;
    some_short = !all;
    if (all) long_looks += long_looks < kMostLong;
    else long_looks -= long_looks > 0;
    if (long_looks >= kNeedsReserve && !reserve_is_wanted() && options.reserve) {
      if (observed(kObserveSysmon)) debug_line("sysmon", nullptr, "fibers that run for long have all slots; there is a reserve");
      want_reserve(options.reserve);
    } else if (long_looks == 0) {
      want_reserve(0);
    }
    if (!reserve_is_wanted()) free_heavy_queue();
  }

  static bool is_stuck(Worker* w, Waiting waiting) {
    if (w->notes.stuck_looks < kStuckLooks) return false;
    uint64_t cpu = cpu_time_of_thread(w->thread.tid);
    return cpu == 0 ||
           cpu - w->notes.stuck_cpu >= (waiting == Waiting::Others ? kStuckNs : kStuckBesideHogsNs);  // 0: a filter refuses the clock
  }
};

}  // namespace fiberthread
