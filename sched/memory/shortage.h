// SPDX-License-Identifier: MIT
#pragma once
#include <stdint.h>

namespace fiberthread::memory {

constexpr uint32_t kBetweenLooks = 1024;  // new blocks of a class between two looks at what memory is left

// Returns true if there are more threads than NPTL usually can have, and less than 1/32 of the memory is left, free swap included. If more
// threads took the last of it, the kernel would end a process, maybe another one, instead of pthread_create() failing.
// Limits of control groups do not count. Any kernel thread may call it. Takes some 40 us with so many threads.
bool is_short();

}  // namespace fiberthread::memory
