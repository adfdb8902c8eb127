#include "sched/arch/inject.h"

#include <csignal>

#include "sched/arch/aarch64/kernel_frame.h"
#include "sched/preempt.h"

namespace fiberthread {

void (*const kernel_restorer)() = nullptr;

bool inject_init() { return true; }

uintptr_t inject_room(ucontext_t* uc) {
  constexpr uintptr_t kRest = sizeof(siginfo_t) + 64;  // beside what is saved; of the handlers' frames
  return saved_size(uc) + kRest;
}

void inject(ucontext_t* uc, void (*fn)()) { inject_hook(uc, fn); }

// It ends as handlers do.
bool injecting(uintptr_t) { return false; }

}  // namespace fiberthread
