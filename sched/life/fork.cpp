// SPDX-License-Identifier: MIT
#include "sched/life/fork.h"

// The linker's names for the section's bounds.
extern "C" const fiberthread::ForkReset __start_fiberthread_fork[] __attribute__((visibility("hidden")));
extern "C" const fiberthread::ForkReset __stop_fiberthread_fork[] __attribute__((visibility("hidden")));

namespace fiberthread {

void sched_reset_after_fork(FiberRecord* me) {
  for (uint32_t step = 0; step <= static_cast<uint32_t>(ForkStep::Blocks); step++)
    for (const ForkReset* r = __start_fiberthread_fork; r != __stop_fiberthread_fork; r++)
      if (r->step == ForkStep{step}) r->reset(me);
}

}  // namespace fiberthread
