// SPDX-License-Identifier: MIT
// What the rest of the shim needs to know of pthread_mutex_t.
#pragma once
#include <pthread.h>

#include <cstdint>

#include "sched/fiber.h"
#include "shim/shared_use.h"

namespace fiberthread {

// Hands the robust mutexes that `me`, the caller, still holds to their next owners, which get EOWNERDEAD. Called once no more code of the
// program runs on it.
void robust_mutexes_owner_died(FiberRecord* me);
// Does the same, but only for mutexes that no other process uses. Called for a kernel thread that is not ours. That thread ends in libc,
// which knows nothing of these mutexes.
void private_robust_mutexes_owner_died(FiberRecord* me);

// Returns what its users need if the mutex is libc's.
Use mutex_use(const pthread_mutex_t* mutex);

// The functions below are for the waits of condition variables.
//
// Returns why `me` may not release the mutex. 0: it may. EPERM: it is not the owner, and the mutex is of a kind that checks. EINVAL:
// destroyed. ENOTRECOVERABLE: the recursive mutex is inconsistent. It is locked once less then, but more than once before.
int mutex_check_release(pthread_mutex_t* mutex, FiberRecord* me);
bool mutex_is_libcs(const pthread_mutex_t* mutex);
// Returns where a waiter may be moved to so that unlocking the mutex wakes it. Null if the mutex would still be held after one unlock, or
// is libc's.
const void* mutex_requeue_address(pthread_mutex_t* mutex);
// The may_move of requeue_waiters(). `address` comes from mutex_requeue_address().
bool mutex_expect_waiters(void* address);
// Unlocks the mutex, which is not to be destroyed before it is locked by mutex_relock().
void mutex_unlock_to_wait(pthread_mutex_t* mutex);
// Locks the mutex after a wait. `token` is Waiter::token if a wake-up ended the wait, else 0. Returns what pthread_mutex_lock would.
int mutex_relock(pthread_mutex_t* mutex, FiberRecord* me, uint64_t token);

}  // namespace fiberthread
