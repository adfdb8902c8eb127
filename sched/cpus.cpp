// SPDX-License-Identifier: MIT
// How many fibers can run at once: the CPUs that the process may use, by its affinity mask and its cgroup's quota.
//
// Raw system calls only, because the scheduler's start counts the CPUs, during the birth of the first fiber.
#include <sched.h>
#include <string.h>

#include "sched/worker.h"

namespace fiberthread {
namespace {

constexpr uint32_t kUnlimited = ~0u;

struct Path {
  char text[512];
  size_t length = 0;
  bool add(const char* s, size_t n) {
    if (length + n >= sizeof text) return false;
    memcpy(text + length, s, n);
    length += n;
    text[length] = 0;
    return true;
  }
};

uint32_t cpus_of(long quota, long period) {
  if (quota <= 0 || period <= 0) return kUnlimited;
  return static_cast<uint32_t>((quota + period - 1) / period);
}

// Returns the quota that one directory sets, in whole CPUs.
enum class Cgroup { V1, V2 };
uint32_t quota_of(Path dir, Cgroup version) {
  char text[64];
  const char* p = text;
  size_t base = dir.length;
  if (version == Cgroup::V2) {
    if (!dir.add("/cpu.max", 8) || !read_text(dir.text, text, sizeof text)) return kUnlimited;
    long quota = read_number(p);
    return cpus_of(quota, read_number(p));
  }
  if (!dir.add("/cpu.cfs_quota_us", 17) || !read_text(dir.text, text, sizeof text)) return kUnlimited;
  long quota = read_number(p);
  if (quota <= 0) return kUnlimited;
  dir.length = base;
  if (!dir.add("/cpu.cfs_period_us", 18) || !read_text(dir.text, text, sizeof text)) return kUnlimited;
  p = text;
  return cpus_of(quota, read_number(p));
}

// Returns the tightest quota from the cgroup up to the root of its hierarchy (cgroups(7)).
uint32_t quota_upwards(const char* mount, const char* group, size_t length, Cgroup version) {
  uint32_t least = kUnlimited;
  size_t root = strlen(mount);
  Path dir;
  if (!dir.add(mount, root) || !dir.add(group, length)) return kUnlimited;
  for (;;) {
    while (dir.length > root && dir.text[dir.length - 1] == '/') dir.length--;
    dir.text[dir.length] = 0;
    uint32_t n = quota_of(dir, version);
    if (n < least) least = n;
    if (dir.length <= root) return least;
    while (dir.length > root && dir.text[dir.length - 1] != '/') dir.length--;
  }
}

// Returns true if the controllers of a line of /proc/self/cgroup, "a,b,c", have "cpu" among them.
bool names_cpu(const char* list, const char* end) {
  while (list < end) {
    const char* comma = static_cast<const char*>(memchr(list, ',', static_cast<size_t>(end - list)));
    const char* stop = comma ? comma : end;
    if (stop - list == 3 && memcmp(list, "cpu", 3) == 0) return true;
    list = stop + 1;
  }
  return false;
}

uint32_t cgroup_quota() {
  char text[4096];
  if (!read_text("/proc/self/cgroup", text, sizeof text)) return kUnlimited;
  uint32_t least = kUnlimited;
  // "ID:CONTROLLERS:GROUP"; no controllers: the one hierarchy of version 2.
  for (char* line = text; *line;) {
    char* end = strchrnul(line, '\n');
    char* list = static_cast<char*>(memchr(line, ':', static_cast<size_t>(end - line)));
    char* group = list ? static_cast<char*>(memchr(list + 1, ':', static_cast<size_t>(end - list - 1))) : nullptr;
    if (group) {
      list++;
      size_t length = static_cast<size_t>(end - group - 1);
      uint32_t n = kUnlimited;
      if (list == group) n = quota_upwards("/sys/fs/cgroup", group + 1, length, Cgroup::V2);
      else if (names_cpu(list, group)) n = quota_upwards("/sys/fs/cgroup/cpu", group + 1, length, Cgroup::V1);
      if (n < least) least = n;
    }
    line = *end ? end + 1 : end;
  }
  return least;
}

}  // namespace

uint32_t cpu_count() {
  cpu_set_t sets[8];  // the kernel refuses room for fewer CPUs than there may ever be, at most 8,192
  long n = raw_syscall(SYS_sched_getaffinity, 0, sizeof sets, arg(sets));
  uint32_t cpus = n > 0 ? static_cast<uint32_t>(CPU_COUNT_S(static_cast<size_t>(n), sets)) : 1;
  uint32_t quota = cgroup_quota();
  return quota < cpus ? quota : cpus;
}

}  // namespace fiberthread
