// SPDX-License-Identifier: MIT
// What the rest of the shim needs to know of pthread_mutex_t.
#pragma once
#include <pthread.h>

#include <cstdint>

#include "sched/fiber.h"
#include "shim/shared_use.h"

namespace fiberthread {

// The robust mutexes that the calling thread still holds pass to the next owner with EOWNERDEAD. By `me`, the caller, once no more
// code of the program runs on it.
void robust_mutexes_owner_died(FiberRecord* me);
// Only those that are no other process's too: of a kernel thread that is not ours. It ends by libc, which knows nothing of these.
void private_robust_mutexes_owner_died(FiberRecord* me);

// What its users need, if it is libc's.
Use mutex_use(const pthread_mutex_t* mutex);

// For condition waits.
// Why `me` may not give the mutex up: 0, EPERM (not the owner, and of a kind that minds) or EINVAL.
int mutex_check_release(pthread_mutex_t* mutex, FiberRecord* me);
bool mutex_is_libcs(const pthread_mutex_t* mutex);
// Where a waiter may be moved to so that unlocking the mutex wakes it; null if the mutex would still be held after one
// unlock, or is not ours to manage.
const void* mutex_requeue_address(pthread_mutex_t* mutex);
// The may_move of requeue_waiters(); `address` is mutex_requeue_address()'s.
bool mutex_expect_waiters(void* address);
int mutex_unlock(pthread_mutex_t* mutex);  // pthread_mutex_unlock
// Locks after a wait; `token` is Waiter::token if the wait was ended by a wake-up, else 0. Returns as pthread_mutex_lock.
int mutex_relock(pthread_mutex_t* mutex, FiberRecord* me, uint64_t token);

}  // namespace fiberthread
