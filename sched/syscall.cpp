// SPDX-License-Identifier: MIT
#include "sched/syscall.h"

#include <errno.h>
#include <linux/futex.h>
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
