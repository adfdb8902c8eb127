// SPDX-License-Identifier: MIT
// Code that the tests of cords share.
#pragma once
#include "fiberthread/cord.h"

#include <sys/prctl.h>
#include <sys/syscall.h>

#include <string>
#include <vector>

#include "sched/worker.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

inline int kernel_tid() { return static_cast<int>(raw_syscall(SYS_gettid)); }
inline void* number(uintptr_t n) { return reinterpret_cast<void*>(n); }

// Returns the name of the caller's kernel thread.
inline std::string kernel_name() {
  char name[17] = {};
  raw_syscall(SYS_prctl, PR_GET_NAME, arg(name));
  return name;
}

template <class F>
void as_both(F f) {
  Threads t;
  t.fiber(f);
  t.join();
  t.kernel(f);
}

inline void join_all(std::vector<Fiber>& fibers) {
  for (auto& f : fibers) cr_assert_eq(f.join(), 0);
  fibers.clear();
}
