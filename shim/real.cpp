// SPDX-License-Identifier: MIT
#include "shim/real.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>

#include "sched/syscall.h"

namespace fiberthread {

void* find_real(const char* name) {
  int saved = errno;
  void* p = nullptr;
  // dlsym would give x86-64's condition variables of 2002, which have another layout.
#if defined(__x86_64__)
  if (strncmp(name, "pthread_cond_", 13) == 0) p = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
#endif
  if (!p) p = dlsym(RTLD_NEXT, name);
  errno = saved;
  return p;
}

void* resolve_real(const char* name, std::atomic<void*>& slot) {
  void* p = find_real(name);
  if (!p) {
    for (const char* s : {"fiberthread: this libc has no ", name, "\n"}) raw_syscall(SYS_write, 2, arg(s), static_cast<long>(strlen(s)));
    abort();
  }
  slot.store(p, std::memory_order_relaxed);
  return p;
}

}  // namespace fiberthread
