// SPDX-License-Identifier: MIT
#include "sched/memory/shortage.h"

#include <string.h>

#include "sched/scheduler.h"
#include "sched/syscall.h"

namespace fiberthread::memory {

namespace {

constexpr uint64_t kUsualMost = 32768;  // the kernel's usual limit for threads (pid_max)
constexpr long kPartLeft = 32;

// Returns the number behind `name` in /proc/meminfo, in kB. Before Linux 3.14 there is no MemAvailable: -1.
long field(const char* text, const char* name) {
  const char* p = strstr(text, name);
  if (!p) return -1;
  p += strlen(name);
  return read_number(p);
}

}  // namespace

bool is_short() {
  char text[4096];
  // A filter of system calls might end the process for this.
  if (live_fibers() < kUsualMost || filtered.load(std::memory_order_relaxed)) return false;
  if (!read_text("/proc/meminfo", text, sizeof text)) return false;
  long all = field(text, "MemTotal:"), available = field(text, "MemAvailable:"), swap = field(text, "SwapFree:");
  return all > 0 && available >= 0 && available + (swap > 0 ? swap : 0) < all / kPartLeft;
}

}  // namespace fiberthread::memory
