// SPDX-License-Identifier: MIT
#include "shim/thread_names.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "sched/memory/block.h"
#include "sched/observe/names.h"
#include "sched/syscall.h"
#include "sched/scheduler.h"

namespace fiberthread {

FiberRecord* fiber_of_tid(int tid) {
  if (tid == 0) return self();
  if (tid < 0) return nullptr;
  if (main_fiber->identity.id == static_cast<uint32_t>(tid)) return main_fiber;
  struct Search {
    uint32_t id;
    FiberRecord* found;
  } search{static_cast<uint32_t>(tid), nullptr};
  block_each(
      [](FiberRecord* f, void* p) {
        auto* s = static_cast<Search*>(p);
        if (f->identity.id != s->id || !f->memory.tcb || !f->join.valid.load(std::memory_order_acquire)) return true;
        s->found = f;
        return false;
      },
      &search);
  return search.found;
}

namespace {

char first_name[16];
std::atomic<bool> first_name_known{false};

// Workers have inherited that name, unless they carry those of fibers.
void name_of_worker(char (&to)[16]) {
  if (observed(kObserveNames)) name_of_process(to);
  else raw_syscall(SYS_prctl, PR_GET_NAME, arg(to));
}

}  // namespace

void name_of(const FiberRecord* f, char* buffer) {
  if (has_name(f)) return void(strcpy(buffer, f->identity.name));
  if (first_name_known.load(std::memory_order_acquire)) return void(strcpy(buffer, first_name));
  char name[16];
  name_of_worker(name);
  strcpy(buffer, name);
}

void set_name(FiberRecord* f, const char* name) {
  if (f == main_fiber && !first_name_known.load(std::memory_order_relaxed)) {
    name_of_worker(first_name);
    first_name_known.store(true, std::memory_order_release);  // name_of() may copy it now
  }
  strncpy(f->identity.name, name, sizeof f->identity.name - 1);
  f->identity.name[sizeof f->identity.name - 1] = 0;
  if (!*name) f->identity.name[1] = 1;
  if (observed(kObserveNames)) return name_changed(f);
  if (f != main_fiber) return;
  Busy busy;  // stays on this kernel thread
  long pid = raw_syscall(SYS_getpid);
  if (raw_syscall(SYS_gettid) == pid) {
    raw_syscall(SYS_prctl, PR_SET_NAME, arg(f->identity.name));
    return;
  }
  char path[48];
  snprintf(path, sizeof path, "/proc/self/task/%ld/comm", pid);
  long fd = raw_syscall(SYS_openat, AT_FDCWD, arg(path), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  raw_syscall(SYS_write, fd, arg(f->identity.name), static_cast<long>(strlen(f->identity.name)));
  raw_syscall(SYS_close, fd);
}

}  // namespace fiberthread
