// SPDX-License-Identifier: MIT
// The stack of a handler while it runs; drawn in signal_frame.S. Part of shim/signal_frame.h.
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

// Embedder::inject(). The injected call returns as handlers do.
void frame_inject(void* ucontext, void (*fn)());

}  // namespace fiberthread::signals
