// SPDX-License-Identifier: MIT
// C11's threads.h. libc's own functions would call its pthread functions from within. tss_* are libc's, as each fiber has values of its
// own.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <threads.h>

#include "shim/export.h"

namespace fiberthread {
namespace {

int c11(int error) {
  switch (error) {
    case 0: return thrd_success;
    case ENOMEM: return thrd_nomem;
    case ETIMEDOUT: return thrd_timedout;
    case EBUSY: return thrd_busy;
    default: return thrd_error;
  }
}

pthread_mutex_t* as_mutex(mtx_t* m) { return reinterpret_cast<pthread_mutex_t*>(m); }
pthread_cond_t* as_cond(cnd_t* c) { return reinterpret_cast<pthread_cond_t*>(c); }
static_assert(sizeof(mtx_t) == sizeof(pthread_mutex_t) && sizeof(cnd_t) == sizeof(pthread_cond_t));
static_assert(sizeof(once_flag) == sizeof(pthread_once_t) && sizeof(thrd_t) == sizeof(pthread_t));

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT int thrd_create(thrd_t* t, thrd_start_t fn, void* arg) {
  // Both architectures return an int in the register of a pointer. thrd_join cuts off what is above it.
  return c11(pthread_create(t, nullptr, reinterpret_cast<void* (*)(void*)>(reinterpret_cast<uintptr_t>(fn)), arg));
}
FIBERTHREAD_EXPORT int thrd_join(thrd_t t, int* result) {
  void* r;
  int e = pthread_join(t, &r);
  if (e == 0 && result) *result = static_cast<int>(reinterpret_cast<intptr_t>(r));
  return c11(e);
}
FIBERTHREAD_EXPORT int thrd_detach(thrd_t t) { return c11(pthread_detach(t)); }
FIBERTHREAD_EXPORT void thrd_exit(int result) { pthread_exit(reinterpret_cast<void*>(static_cast<intptr_t>(result))); }
FIBERTHREAD_EXPORT void thrd_yield() { sched_yield(); }
FIBERTHREAD_EXPORT int thrd_sleep(const timespec* t, timespec* left) {
  int e = clock_nanosleep(CLOCK_REALTIME, 0, t, left);
  return e == 0 ? 0 : e == EINTR ? -1 : -2;
}

FIBERTHREAD_EXPORT int mtx_init(mtx_t* m, int type) {
  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_settype(&attr, (type & ~mtx_timed) == mtx_recursive ? PTHREAD_MUTEX_RECURSIVE : PTHREAD_MUTEX_NORMAL);
  int e = pthread_mutex_init(as_mutex(m), &attr);
  pthread_mutexattr_destroy(&attr);
  return c11(e);
}
FIBERTHREAD_EXPORT int mtx_lock(mtx_t* m) { return c11(pthread_mutex_lock(as_mutex(m))); }
FIBERTHREAD_EXPORT int mtx_trylock(mtx_t* m) { return c11(pthread_mutex_trylock(as_mutex(m))); }
FIBERTHREAD_EXPORT int mtx_timedlock(mtx_t* m, const timespec* t) { return c11(pthread_mutex_timedlock(as_mutex(m), t)); }
FIBERTHREAD_EXPORT int mtx_unlock(mtx_t* m) { return c11(pthread_mutex_unlock(as_mutex(m))); }
FIBERTHREAD_EXPORT void mtx_destroy(mtx_t* m) { pthread_mutex_destroy(as_mutex(m)); }

FIBERTHREAD_EXPORT int cnd_init(cnd_t* c) { return c11(pthread_cond_init(as_cond(c), nullptr)); }
FIBERTHREAD_EXPORT int cnd_signal(cnd_t* c) { return c11(pthread_cond_signal(as_cond(c))); }
FIBERTHREAD_EXPORT int cnd_broadcast(cnd_t* c) { return c11(pthread_cond_broadcast(as_cond(c))); }
FIBERTHREAD_EXPORT int cnd_wait(cnd_t* c, mtx_t* m) { return c11(pthread_cond_wait(as_cond(c), as_mutex(m))); }
FIBERTHREAD_EXPORT int cnd_timedwait(cnd_t* c, mtx_t* m, const timespec* t) {
  return c11(pthread_cond_timedwait(as_cond(c), as_mutex(m), t));
}
FIBERTHREAD_EXPORT void cnd_destroy(cnd_t* c) { pthread_cond_destroy(as_cond(c)); }

FIBERTHREAD_EXPORT void call_once(once_flag* flag, void (*fn)()) { pthread_once(reinterpret_cast<pthread_once_t*>(flag), fn); }
