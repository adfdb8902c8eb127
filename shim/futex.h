// SPDX-License-Identifier: MIT
// Futexes by system call. The names of POSIX have waits of their own.
#pragma once
#include <cstdint>

namespace fiberthread {

// SYS_futex, once the scheduler has started: private futexes wait in the parking lot, others may be another process's and are the kernel's.
// Any thread may call it, for a futex is one and the same for all threads of the process. Answers as the kernel does.
long futex_call(uint32_t* word, int op, uint32_t value, long fourth, uint32_t* word2, uint32_t value3);

// Lets a thread that waits for this word in FUTEX_LOCK_PI look again.
void pi_owner_died(const uint32_t* word);

}  // namespace fiberthread
