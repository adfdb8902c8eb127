// SPDX-License-Identifier: MIT
// mlockall and munlockall (sys/mman.h): stacks are part of a program's memory.
#include <sys/mman.h>

#include "sched/memory/block.h"
#include "shim/export.h"
#include "shim/real.h"

using namespace fiberthread;

FIBERTHREAD_EXPORT int mlockall(int flags) {
  bool future = flags & MCL_FUTURE;
  // Before the call, as a thread may be made beside it.
  int before = future ? memory_lock_new(flags & MCL_ONFAULT ? MLOCK_ONFAULT : 0) : -1;
  int r = REAL(mlockall)(flags);
  if (r == 0 && !future) memory_lock_new(-1);
  if (r != 0 && future) memory_lock_new(before);
  return r;
}

FIBERTHREAD_EXPORT int munlockall() {
  int r = REAL(munlockall)();
  if (r == 0) memory_lock_new(-1);
  return r;
}
