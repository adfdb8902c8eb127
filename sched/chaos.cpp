// SPDX-License-Identifier: MIT
#include "sched/chaos.h"

#include <atomic>

#include "sched/arch/arch.h"
#include "sched/syscall.h"

namespace fiberthread {

uint64_t chaos_seed = 0;

namespace {
// Relaxed, because the numbers only have to differ. One counter and not one per worker, because any context may ask.
std::atomic<uint64_t> asked{0};
}  // namespace

// SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
uint32_t chaos_number() {
  uint64_t x = chaos_seed + asked.fetch_add(1, std::memory_order_relaxed) * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return static_cast<uint32_t>((x ^ x >> 31) >> 16);
}

bool chaos_roll(uint32_t one_in) { return chaos_number() % one_in == 0; }

void chaos_wait() {
  uint32_t n = chaos_number();
  if (n % 8) return;
  n /= 8;
  if (n % 16 == 0) {
    raw_syscall(SYS_sched_yield);  // with more workers than CPUs, another worker now runs for a slice
    return;
  }
  for (uint32_t i = n / 16 % 256; i; i--) cpu_relax();
}

}  // namespace fiberthread
