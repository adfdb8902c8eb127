// SPDX-License-Identifier: MIT
// The frame on the stack of a handler of the program. signal_frame.S has a drawing of it. Part of shim/signal_frame.h.
#pragma once
#include <signal.h>
#include <ucontext.h>

#include <cstddef>

namespace fiberthread::signals {

constexpr size_t kMinAlternate = 5120;

struct Frame {
  siginfo_t info;
  ucontext_t context;
  ucontext_t* uc() { return &context; }
};

// The function for Embedder::inject. The injected call returns as handlers do.
void frame_inject(void* ucontext, void (*fn)());

}  // namespace fiberthread::signals
