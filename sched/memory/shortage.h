// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

namespace fiberthread::memory {

constexpr uint32_t kBetweenLooks = 1024;  // new blocks of a class between two looks at what memory is left

// Returns true if there are more threads than NPTL usually can have, and less than a part in 32 of the memory is left, with swap. Otherwise
// the next ones would take the last of it. Then the kernel ends a process, maybe another one, and pthread_create() has no chance to fail.
// Limits of control groups do not count. Any kernel thread may call it. Takes some 40 us with so many threads.
bool is_short();

}  // namespace fiberthread::memory
