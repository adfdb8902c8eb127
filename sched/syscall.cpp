// SPDX-License-Identifier: MIT
#include "sched/syscall.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/uio.h>
#include <time.h>

#include "sched/explore/explore.h"

// From the linker: the bounds of the library's code, and of the section that has program_syscall().
extern "C" {
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char etext[] __attribute__((visibility("hidden")));
extern const char __start_fiberthread_program[] __attribute__((visibility("hidden")));
extern const char __stop_fiberthread_program[] __attribute__((visibility("hidden")));
}

namespace fiberthread {

std::atomic<uint32_t> filtered{0};

[[gnu::noinline, gnu::section("fiberthread_program")]] long program_syscall(long nr, long a, long b, long c, long d, long e, long f) {
  return raw_syscall(nr, a, b, c, d, e, f);
}

uint64_t copy_own(void* to, const void* from, uint64_t size) {
  iovec here{to, size}, there{const_cast<void*>(from), size};
  long n = raw_syscall(SYS_process_vm_readv, raw_syscall(SYS_getpid), arg(&here), 1, arg(&there), 1, 0);
  return n > 0 ? static_cast<uint64_t>(n) : 0;
}

bool read_text(const char* path, char* text, size_t size) {
  long fd = raw_syscall(SYS_openat, AT_FDCWD, arg(path), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  long got = raw_syscall(SYS_read, fd, arg(text), static_cast<long>(size - 1));
  raw_syscall(SYS_close, fd);
  if (got <= 0) return false;
  text[got] = 0;
  return true;
}

long read_number(const char*& p) {
  while (*p == ' ') p++;
  if (*p < '0' || *p > '9') return -1;
  long n = 0;
  for (; *p >= '0' && *p <= '9'; p++) n = n * 10 + (*p - '0');
  return n;
}

thread_local constinit bool OwnCalls::now = false;

bool is_own_syscall(const void* at) {
  if (OwnCalls::now) return true;
  auto* p = static_cast<const char*>(at);
  return p >= __ehdr_start && p < etext && !(p >= __start_fiberthread_program && p <= __stop_fiberthread_program);
}

long futex_wait(const void* word, uint32_t expected, uint64_t deadline_ns, bool realtime) {
  int64_t ns = static_cast<int64_t>(deadline_ns);
  if (realtime) {
    timespec monotonic, real;
    clock_gettime(CLOCK_MONOTONIC, &monotonic);
    clock_gettime(CLOCK_REALTIME, &real);
    ns += (real.tv_sec - monotonic.tv_sec) * 1'000'000'000 + (real.tv_nsec - monotonic.tv_nsec);
  }
  timespec ts{ns / 1'000'000'000, ns % 1'000'000'000}, asked = ts;
  clockid_t clock = realtime ? CLOCK_REALTIME : CLOCK_MONOTONIC;
  if (__builtin_expect(exploring, 0) && deadline_ns) ts = explore_kernel_time(clock, ts);
  // BITSET takes an absolute time.
  long op = FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG | (realtime ? FUTEX_CLOCK_REALTIME : 0);
  long r = raw_syscall(SYS_futex, arg(word), op, expected, deadline_ns ? arg(&ts) : 0, 0, static_cast<long>(FUTEX_BITSET_MATCH_ANY));
  if (__builtin_expect(exploring, 0) && r == -ETIMEDOUT) explore_waited_until(clock, asked);
  return r;
}

long futex_wake(const void* word, int count) { return raw_syscall(SYS_futex, arg(word), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count); }

}  // namespace fiberthread
