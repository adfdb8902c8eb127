// SPDX-License-Identifier: MIT
#include "shim/thread_names.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "sched/memory/block.h"
#include "sched/syscall.h"
#include "sched/worker.h"

namespace fiberthread {

FiberRecord* fiber_of_tid(int tid) {
  if (tid == 0) return self();
  if (tid < 0) return nullptr;
  if (main_fiber->id == static_cast<uint32_t>(tid)) return main_fiber;
  struct Search {
    uint32_t id;
    FiberRecord* found;
  } search{static_cast<uint32_t>(tid), nullptr};
  block_each(
      [](FiberRecord* f, void* p) {
        auto* s = static_cast<Search*>(p);
        if (f->id != s->id || !f->tcb || !f->valid.load(std::memory_order_acquire)) return true;
        s->found = f;
        return false;
      },
      &search);
  return search.found;
}

void set_name(FiberRecord* f, const char* name) {
  strncpy(f->name, name, sizeof f->name - 1);
  f->name[sizeof f->name - 1] = 0;
  if (!*name) f->name[1] = 1;
  if (f != main_fiber) return;
  Busy busy;  // stays on this kernel thread
  long pid = raw_syscall(SYS_getpid);
  if (raw_syscall(SYS_gettid) == pid) {
    raw_syscall(SYS_prctl, PR_SET_NAME, arg(f->name));
    return;
  }
  char path[48];
  snprintf(path, sizeof path, "/proc/self/task/%ld/comm", pid);
  long fd = raw_syscall(SYS_openat, AT_FDCWD, arg(path), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  raw_syscall(SYS_write, fd, arg(f->name), static_cast<long>(strlen(f->name)));
  raw_syscall(SYS_close, fd);
}

}  // namespace fiberthread
