// SPDX-License-Identifier: MIT
#include "sched/arch/inject.h"

#include <csignal>

#include "sched/arch/aarch64/kernel_frame.h"
#include "sched/embedder.h"

namespace fiberthread {

void (*const kernel_restorer)() = nullptr;

// The embedder's own way is the only one.
bool inject_init() { return embedder().inject; }

uintptr_t inject_room(ucontext_t* uc) {
  constexpr uintptr_t kRest = sizeof(siginfo_t) + 64;  // beside what is saved; of the handlers' frames
  return saved_size(uc) + kRest;
}

void inject(ucontext_t* uc, void (*fn)()) { embedder().inject(uc, fn); }

// The call ends as the embedder's handlers do: Embedder::must_not_stop_at() knows that code.
bool injecting(uintptr_t) { return false; }

}  // namespace fiberthread
