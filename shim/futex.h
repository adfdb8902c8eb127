// SPDX-License-Identifier: MIT
// Futexes by system call. The names of POSIX have waits of their own.
#pragma once
#include <cstdint>

namespace fiberthread {

// Does SYS_futex once the scheduler has started. Private futexes wait in the parking lot. Others may be another process's, and are left to
// the kernel. Any thread may call it, since a futex is the same for all threads of the process. Returns what the kernel would return.
long futex_call(uint32_t* word, int op, uint32_t value, long fourth, uint32_t* word2, uint32_t value3);

// Lets one thread that waits for this word in FUTEX_LOCK_PI look again. Called when the owner of the lock has died.
void pi_owner_died(const uint32_t* word);

}  // namespace fiberthread
