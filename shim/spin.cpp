// SPDX-License-Identifier: MIT
// pthread_spin_*. The values are NPTL's, since other users of a shared lock have them. A caller that does not get the lock soon yields,
// because the holder may be a fiber that waits for this very worker.
#include <errno.h>
#include <pthread.h>

#include "sched/arch/arch.h"
#include "sched/fiber.h"
#include "shim/export.h"

namespace fiberthread {
namespace {

#if defined(__x86_64__)
constexpr int kFree = 1, kTaken = 0;
#else
constexpr int kFree = 0, kTaken = 1;
#endif
constexpr int kSpins = 100;

bool try_lock(pthread_spinlock_t* l) {
  // Acquire: pairs with the release of unlock. A value beyond kTaken (on x86-64: below 0) comes from an NPTL that counts its waiters.
  return __atomic_load_n(l, __ATOMIC_RELAXED) == kFree && __atomic_exchange_n(l, kTaken, __ATOMIC_ACQUIRE) == kFree;
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int pthread_spin_init(pthread_spinlock_t* l, int) noexcept {
  __atomic_store_n(l, kFree, __ATOMIC_RELAXED);
  return 0;
}

FIBERTHREAD_EXPORT int pthread_spin_destroy(pthread_spinlock_t*) noexcept { return 0; }

FIBERTHREAD_EXPORT FIBERTHREAD_STOPPABLE int pthread_spin_trylock(pthread_spinlock_t* l) noexcept { return try_lock(l) ? 0 : EBUSY; }

FIBERTHREAD_EXPORT FIBERTHREAD_STOPPABLE int pthread_spin_lock(pthread_spinlock_t* l) noexcept {
  for (int spins = 0; !try_lock(l);) {
    if (++spins < kSpins) {
      cpu_relax();
    } else {
      spins = 0;
      give_way();
    }
  }
  return 0;
}

FIBERTHREAD_EXPORT FIBERTHREAD_STOPPABLE int pthread_spin_unlock(pthread_spinlock_t* l) noexcept {
  __atomic_store_n(l, kFree, __ATOMIC_RELEASE);
  return 0;
}
