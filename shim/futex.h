// SPDX-License-Identifier: MIT
// Futexes by system call. The names of POSIX have waits of their own.
#pragma once
#include <time.h>

#include <cstdint>

namespace fiberthread {

// Does SYS_futex once the scheduler has started. Private futexes wait in the parking lot. Others may be another process's, and are left to
// the kernel. Any thread may call it, since a futex is the same for all threads of the process. Returns what the kernel would return.
long futex_call(uint32_t* word, int op, uint32_t value, long fourth, uint32_t* word2, uint32_t value3);

// The same for the calls that Linux 6.7 brought, which no header of Debian 12 names. They are the same on all processors.
constexpr long kFutexWake = 454, kFutexWait = 455, kFutexRequeue = 456;
long futex2_wake(uint32_t* word, uint64_t bits, int n, uint32_t flags);
long futex2_wait(uint32_t* word, uint64_t expected, uint64_t bits, uint32_t flags, const timespec* t, clockid_t clock);
long futex2_requeue(const void* two, uint32_t flags, int wakes, int moves);

// Lets one thread that waits for this word in FUTEX_LOCK_PI look again. Called when the owner of the lock has died.
void pi_owner_died(const uint32_t* word);

}  // namespace fiberthread
