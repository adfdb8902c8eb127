// SPDX-License-Identifier: MIT
// How fibers are made and begun: spawn, new, start, call, discard.
#include <string.h>

#include "sched/life/join.h"
#include "sched/cord.h"
#include "shim/thread_names.h"
#include "shim/fibers/fiber_handle.h"
#include "shim/real.h"
#include "shim/thread.h"

namespace fiberthread {
namespace {

int join_cord(FiberRecord* f, const fiberthread_options_t& o) {
  if (o.bound || f->run.bound.load(std::memory_order_relaxed)) return EINVAL;
  return cord_admit(reinterpret_cast<CordRecord*>(o.cord), f) ? 0 : EPIPE;
}

int make_fiber(const fiberthread_options_t* options, void* (*start)(void*), FiberRecord** made) {
  static constexpr fiberthread_options_t kDefault{};
  const fiberthread_options_t& o = options ? *options : kDefault;
  if (!start) return EINVAL;
  if (o.name && strlen(o.name) >= sizeof FiberRecord::Identity::name) return ERANGE;
  FiberRecord* f;
  if (!thread_start_scheduler()) {
    if (int e = make_nptl(o, start, &f)) return e;
    if (o.name) on_nptl([&] { return REAL(pthread_setname_np)(reinterpret_cast<pthread_t>(f->memory.tcb), o.name); });
  } else {
    if (int e = thread_make(o.attr, o.stack_size, &f)) return e;
    f->identity.start = start;
    if (o.cord)
      if (int e = join_cord(f, o)) {
        sched_discard(f);
        return e;
      }
    if (o.bound)
      if (int e = sched_bind(f)) {
        sched_discard(f);
        return e;
      }
    if (o.name) set_name(f, o.name);
  }
  if (o.detached) f->join.detached = true;
  *made = f;
  return 0;
}

void begin(FiberRecord* f, void* argument) {
  f->identity.arg = argument;
  if (f->run.kernel) return kernel_record_start(f);
  thread_begin(f);
  if (f->handle.fresh.load(std::memory_order_relaxed)) f->handle.fresh.store(0, std::memory_order_release);
  sched_spawn(f);
}

// Returns 0 if the fiber was new. Then the caller alone may start or discard it.
int claim(FiberRecord* f, fiberthread_t h) {
  if (!is_still(f, h)) return ESRCH;
  return join_locked(f, [f, h] {
    // A fresh fiber stays fresh under the lock. So if the serial matches after this load, `fresh` was this fiber's.
    uint32_t fresh = f->handle.fresh.load(std::memory_order_acquire);
    if (fresh != kFresh) return is_still(f, h) && fresh != kDiscarded ? EALREADY : ESRCH;
    if (!is_still(f, h)) return ESRCH;
    f->handle.fresh.store(kClaimed, std::memory_order_relaxed);
    return 0;
  });
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_API int fiberthread_spawn(fiberthread_t* fiber, const fiberthread_options_t* options, void* (*start)(void*), void* argument) {
  FiberRecord* f;
  if (int e = make_fiber(options, start, &f)) return e;
  *fiber = handle_of(f);  // stored before the fiber runs
  begin(f, argument);
  return 0;
}

FIBERTHREAD_API int fiberthread_new(fiberthread_t* fiber, const fiberthread_options_t* options, void* (*start)(void*)) {
  FiberRecord* f;
  if (int e = make_fiber(options, start, &f)) return e;
  f->handle.fresh.store(kFresh, std::memory_order_release);
  *fiber = handle_of(f);
  return 0;
}

FIBERTHREAD_API int fiberthread_start(fiberthread_t fiber, void* argument) {
  FiberRecord* f = record_of(fiber);
  if (int e = claim(f, fiber)) return e;
  begin(f, argument);
  return 0;
}

FIBERTHREAD_API int fiberthread_call(fiberthread_t fiber, void* argument) {
  if (in_cord_callback()) return EPERM;
  FiberRecord* f = record_of(fiber);
  if (int e = claim(f, fiber)) return e;
  f->identity.arg = argument;
  if (!f->run.kernel) {
    thread_begin(f);
    f->handle.fresh.store(0, std::memory_order_release);
  }
  return sched_call(f, kInterruptEnd | kInterruptLeave);
}

FIBERTHREAD_API int fiberthread_discard(fiberthread_t fiber) {
  FiberRecord* f = record_of(fiber);
  if (int e = claim(f, fiber)) return e;
  if (f->run.kernel) {
    f->join.detached = true;
    f->handle.fresh.store(kDiscarded, std::memory_order_release);
    futex_wake(&f->handle.fresh, 1);
  } else {
    f->handle.fresh.store(0, std::memory_order_release);
    sched_discard(f);
  }
  return 0;
}
