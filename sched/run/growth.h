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
struct Growth {
  // A fiber that goes on for so many looks, and for so much CPU time, while others wait, cannot be stopped where it is. A hog gives way at the
  // next tick, or after kLongestTurn if only hogs wait, and four ticks later where it is in libc's code then.
  static constexpr uint32_t kStuckLooks = 20;
  static constexpr uint64_t kStuckNs = 10 * kTickNs, kStuckBesideHogsNs = (kLongestTurn + 8) * kTickNs;
  static constexpr uint32_t kShrinkLooks = 100;  // looks with fewer spinners than slots, before there is one less
  static constexpr uint32_t kMostGrowth = 4;     // times the base

  uint32_t spinners = 0, last_spinners = 0;  // with a slot, in this look and the one before
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
    last_spinners = spinners;
    last_waiting = waiting;
    spinners = 0;
  }

  // Before a long sleep. While there is a spinner, the slots stay: a program whose spinners hand work on is quiet between two looks.
  void settle() {
    if (last_spinners == 0 && slots_now() < slots_wanted()) want_slots(slots_now());
  }

 private:
  static bool is_stuck(Worker* w, Waiting waiting) {
    if (w->notes.stuck_looks < kStuckLooks) return false;
    uint64_t cpu = cpu_time_of_thread(w->thread.tid);
    return cpu == 0 ||
           cpu - w->notes.stuck_cpu >= (waiting == Waiting::Others ? kStuckNs : kStuckBesideHogsNs);  // 0: a filter refuses the clock
  }
};

}  // namespace fiberthread
