// SPDX-License-Identifier: MIT
// Fibers where threads are libc's.
#include "shim/fibers/fiber_handle.h"

#include "shim/real.h"
#include "shim/thread.h"

namespace fiberthread {
namespace {

void* run_nptl(void* p) {
  auto* f = static_cast<FiberRecord*>(p);
  kernel_record_enter(f);
  while (uint32_t fresh = f->handle.fresh.load(std::memory_order_acquire)) {
    if (fresh == kDiscarded) return nullptr;
    futex_wait(&f->handle.fresh, fresh);  // parking would end the wait of the caller of fiberthread_call()
  }
  return f->identity.start(f->identity.arg);
}

// Asks for the attributes one by one, since an attribute object cannot be copied. `stack_size` takes precedence over that of `from`.
int copy_attr(pthread_attr_t* to, const pthread_attr_t* from, size_t stack_size) {
  pthread_attr_init(to);
  if (from) {
    size_t guard, size;
    void* stack;
    int inherit, policy;
    sched_param priority;
    sigset_t mask;
    cpu_set_t cpus;
    pthread_attr_getguardsize(from, &guard);
    pthread_attr_setguardsize(to, guard);
    pthread_attr_getstack(from, &stack, &size);
    if (reinterpret_cast<uintptr_t>(stack) + size != 0) {
      pthread_attr_setstack(to, stack, size);
      stack_size = 0;
    } else if (pthread_attr_getstacksize(from, &size) == 0) {
      pthread_attr_setstacksize(to, size);
    }
    pthread_attr_getinheritsched(from, &inherit);
    pthread_attr_setinheritsched(to, inherit);
    pthread_attr_getschedpolicy(from, &policy);
    pthread_attr_setschedpolicy(to, policy);
    pthread_attr_getschedparam(from, &priority);
    pthread_attr_setschedparam(to, &priority);
    if (pthread_attr_getsigmask_np(from, &mask) == 0) pthread_attr_setsigmask_np(to, &mask);
    CPU_ZERO(&cpus);
    if (pthread_attr_getaffinity_np(from, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < CPU_SETSIZE)
      pthread_attr_setaffinity_np(to, sizeof cpus, &cpus);
  }
  return stack_size ? pthread_attr_setstacksize(to, stack_size) : 0;
}

}  // namespace

int make_nptl(const fiberthread_options_t& o, void* (*start)(void*), FiberRecord** made) {
  pthread_attr_t attr;
  if (int e = copy_attr(&attr, o.attr, o.stack_size)) {
    pthread_attr_destroy(&attr);  // it may have a set of CPUs
    return e;
  }
  int state = PTHREAD_CREATE_JOINABLE;
  if (o.attr) pthread_attr_getdetachstate(o.attr, &state);
  FiberRecord* f = kernel_record_get();
  f->identity.start = start;
  f->join.detached = state == PTHREAD_CREATE_DETACHED;
  f->handle.fresh.store(kFresh, std::memory_order_relaxed);
  f->join.valid.store(true, std::memory_order_release);
  pthread_t thread;
  int e = on_nptl([&] { return REAL(pthread_create)(&thread, &attr, run_nptl, f); });
  pthread_attr_destroy(&attr);
  if (e) {
    f->handle.fresh.store(0, std::memory_order_relaxed);
    kernel_record_put(f);
    return e;
  }
  f->memory.tcb = reinterpret_cast<void*>(thread);  // the new thread writes the same
  *made = f;
  return 0;
}

}  // namespace fiberthread
