// SPDX-License-Identifier: MIT
#include "sched/arch/inject.h"

#include <csignal>

#include "sched/arch/aarch64/kernel_frame.h"
#include "sched/embedder.h"

namespace fiberthread {

void (*const kernel_restorer)() = nullptr;

// The embedder's function is the only way to inject a call.
bool inject_init() { return embedder().inject; }

uintptr_t inject_room(ucontext_t* uc) {
  constexpr uintptr_t kRest = sizeof(siginfo_t) + 64;  // what the embedder's frame has beside the saved state
  return saved_size(uc) + kRest;
}

void inject(ucontext_t* uc, void (*fn)()) { embedder().inject(uc, fn); }

// There is no code of ours: the call ends as the embedder's handlers do, and Embedder::must_not_stop_at() knows that code.
bool injecting(uintptr_t) { return false; }

}  // namespace fiberthread
