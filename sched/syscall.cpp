#include "sched/syscall.h"

#include <linux/futex.h>
#include <time.h>

namespace fiberthread {

long futex_wait(const void* word, uint32_t expected, uint64_t deadline_ns) {
  timespec ts{static_cast<time_t>(deadline_ns / 1'000'000'000), static_cast<long>(deadline_ns % 1'000'000'000)};
  // BITSET takes an absolute CLOCK_MONOTONIC time.
  return raw_syscall(SYS_futex, arg(word), FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected, deadline_ns ? arg(&ts) : 0, 0,
                     static_cast<long>(FUTEX_BITSET_MATCH_ANY));
}

long futex_wake(const void* word, int count) {
  return raw_syscall(SYS_futex, arg(word), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count);
}

}  // namespace fiberthread
