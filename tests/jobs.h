// SPDX-License-Identifier: MIT
// Code that the tests of JobQueue share.
#pragma once
#include "fiberthread/job_queue.h"

#include <atomic>

#include "fiberthread/fiber_futex.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

inline void* twice(void* p) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(p) * 2); }
inline void* number(uintptr_t n) { return reinterpret_cast<void*>(n); }

// Runs f in a fiber and in a kernel thread.
template <class F>
void as_both(F f) {
  Threads t;
  t.fiber(f);
  t.kernel(f);
}

// A job that waits until the test opens the gate.
struct Gate {
  FiberFutex open;
  std::atomic<int> inside{0};
  static void* pass(void* p) {
    auto* g = static_cast<Gate*>(p);
    g->inside++;
    g->open.wait(1);
    return g;
  }
};
