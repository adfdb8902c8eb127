// SPDX-License-Identifier: MIT
// User code cannot set the processor's flag for steps.
#pragma once

namespace fiberthread {

constexpr bool kCanStep = false;

inline Access next_access(const ucontext_t*) { return {}; }
inline void set_stepping(ucontext_t*, bool) {}
inline void begin_stepping() {}
inline void inject_stepping(uintptr_t) {}

}  // namespace fiberthread
