// SPDX-License-Identifier: MIT
// pthread_barrier_*. A private barrier counts in glibc's object, and the last thread to come releases the others. Shared barriers are
// libc's.
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>

#include "shim/export.h"
#include "shim/real.h"
#include "sync/parking_lot.h"

namespace fiberthread {
namespace {

struct Barrier {
  uint32_t arrived;  // under the bucket lock
  uint32_t unused;
  uint32_t count;
  int shared;  // as glibc has it: 0 is private
};
static_assert(sizeof(Barrier) <= sizeof(pthread_barrier_t));

Barrier& of(pthread_barrier_t* b) { return *reinterpret_cast<Barrier*>(b); }

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int pthread_barrier_init(pthread_barrier_t* b, const pthread_barrierattr_t* attr, unsigned count) noexcept {
  int shared = PTHREAD_PROCESS_PRIVATE;
  if (attr) pthread_barrierattr_getpshared(attr, &shared);
  if (shared == PTHREAD_PROCESS_SHARED) return REAL(pthread_barrier_init)(b, attr, count);
  if (count == 0 || count >= INT_MAX) return EINVAL;
  memset(b, 0, sizeof *b);
  of(b).count = count;
  return 0;
}

// Returns at once, since no thread touches the object after it was released.
FIBERTHREAD_EXPORT int pthread_barrier_destroy(pthread_barrier_t* b) noexcept {
  return of(b).shared ? REAL(pthread_barrier_destroy)(b) : 0;
}

FIBERTHREAD_EXPORT int pthread_barrier_wait(pthread_barrier_t* b) noexcept {
  if (of(b).shared) {
    Blocking blocking;
    return REAL(pthread_barrier_wait)(b);
  }
  Waiter w;
  WakeList list;
  bool last;
  {
    LockedQueue q(b);
    last = ++of(b).arrived == of(b).count;
    if (last) {
      of(b).arrived = 0;
      while (q.first()) list.add(q, *q.first());
    } else {
      q.add(w);
    }
  }
  if (!last) {
    wait(w, {"barrier", b});
    return 0;
  }
  list.wake_all();
  return PTHREAD_BARRIER_SERIAL_THREAD;
}
