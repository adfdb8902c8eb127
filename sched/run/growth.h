// SPDX-License-Identifier: MIT
// How many slots there are while fibers spin. Sysmon's own.
#pragma once
#include <cstdint>

#include "sched/observe/observe.h"
#include "sched/worker.h"

namespace fiberthread {

// The number of slots grows for spinners. A spinner that waits for a queued fiber does nothing else, and that fiber waits a slice for each
// spinner. So while spinners have all slots and other fibers wait, slots grow to the number of fibers to run, if that is not too many. The
// kernel then slices their workers as it does NPTL's threads. Few slots serve a greater crowd better, because all hogs take turns in one
// line. They also serve fibers that compute better, for which more kernel threads are only more switches. When there are fewer spinners,
// the slots go one by one.
struct Growth {
  static constexpr uint32_t kStuckLooks = 40;    // looks without a switch though others wait; a fiber in libc's code may take four ticks
  static constexpr uint32_t kShrinkLooks = 100;  // looks with fewer spinners than slots, before there is one less
  static constexpr uint32_t kMostGrowth = 4;     // times the base

  uint32_t spinners = 0, last_spinners = 0;  // with a slot, in this look and the one before
  uint32_t spare_looks = 0;

  void count(Worker* w, bool progress) {
    w->notes.stuck_looks = progress || who_waits_for(w) == Waiting::Nobody ? 0 : w->notes.stuck_looks + 1;
    FiberRecord* f = w->run.running.load(std::memory_order_relaxed);
    if (!f || !__atomic_load_n(&w->run.slot, __ATOMIC_RELAXED) || w->run.revoked.load(std::memory_order_relaxed) == kTaken) return;
    if (is_spinner(f) || w->notes.stuck_looks >= kStuckLooks) spinners++;
  }

  void decide(bool queued) {
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
    spinners = 0;
  }

  // Before a long sleep. While there is a spinner, the slots stay: a program whose spinners hand work on is quiet between two looks.
  void settle() {
    if (last_spinners == 0 && slots_now() < slots_wanted()) want_slots(slots_now());
  }
};

}  // namespace fiberthread
