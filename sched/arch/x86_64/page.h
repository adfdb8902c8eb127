// SPDX-License-Identifier: MIT
// Pages, and the guards of stacks.
#pragma once
#include <cstddef>

namespace fiberthread {

constexpr size_t page_size() { return 4096; }

constexpr size_t kLeastGuard = 0;  // bytes; see the other processor

}  // namespace fiberthread
