// SPDX-License-Identifier: MIT
// Pages, and the guards of stacks.
#pragma once
#include <cstddef>

namespace fiberthread {

constexpr size_t page_size() { return 4096; }

// The guard of a thread that asks for these bytes, which are whole pages.
constexpr bool kGuardsGrow = false;
constexpr size_t guard_for(size_t asked) { return asked; }

}  // namespace fiberthread
