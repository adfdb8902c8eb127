// SPDX-License-Identifier: MIT
#include "sched/life/fork.h"

#include "sched/glibc/self_check.h"
#include "sched/scheduler.h"

// The linker's names for the section's bounds.
extern "C" const fiberthread::ForkReset __start_fiberthread_fork[] __attribute__((visibility("hidden")));
extern "C" const fiberthread::ForkReset __stop_fiberthread_fork[] __attribute__((visibility("hidden")));

namespace fiberthread {
namespace {

// Returns true for what is as it was at the start of the process as long as there was no scheduler and no foreign thread. To write that once
// more would cost each child of a process without threads its own copies of a dozen pages.
bool of_scheduler(ForkStep step) {
  if (step == ForkStep::Libc) return !tcb_known();
  return (step >= ForkStep::EmbeddersThreads && step <= ForkStep::Preemption) || step >= ForkStep::Reaper;
}

}  // namespace

void sched_reset_after_fork(FiberRecord* me) {
  bool used = sched_asked() || kernel_records_exist();
  for (uint32_t step = 0; step <= static_cast<uint32_t>(ForkStep::Blocks); step++) {
    if (!used && of_scheduler(ForkStep{step})) continue;
    for (const ForkReset* r = __start_fiberthread_fork; r != __stop_fiberthread_fork; r++)
      if (r->step == ForkStep{step}) r->reset(me);
  }
}

}  // namespace fiberthread
