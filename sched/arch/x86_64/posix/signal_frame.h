// SPDX-License-Identifier: MIT
// The frame on the stack of a handler of the program. signal_frame.S has a drawing of it. Part of shim/signal_frame.h.
#pragma once
#include <signal.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>

namespace fiberthread::signals {

constexpr size_t kMinAlternate = 2048;

struct Frame {
  void* back;
  struct alignas(8) {
    char bytes[304];
  } context;
  siginfo_t info;
  uint32_t busy;
  bool left, restarts;
  uint64_t flags;
  ucontext_t* uc() { return reinterpret_cast<ucontext_t*>(&context); }
};

// The function for Embedder::inject: none, because the scheduler has a trampoline of its own (trampoline.S).
inline constexpr void (*frame_inject)(void* ucontext, void (*fn)()) = nullptr;

}  // namespace fiberthread::signals
