// The few things that differ by processor and are one instruction or one register.
#pragma once
#include <cstdint>

namespace fiberthread {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("isb" ::: "memory");  // longer than yield, which most cores ignore
#endif
}

// Ticks of the constant-rate cycle counter. Not nanoseconds; only differences mean something.
inline uint64_t cycles() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  uint64_t v;
  asm volatile("mrs %0, cntvct_el0" : "=r"(v));
  return v;
#endif
}

// Read anew each time: the compiler's own builtin counts as constant, and would be kept across a switch.
inline void* thread_pointer() {
  void* tp;
#if defined(__x86_64__)
  asm volatile("mov %%fs:0, %0" : "=r"(tp));
#else
  asm volatile("mrs %0, tpidr_el0" : "=r"(tp));
#endif
  return tp;
}

}  // namespace fiberthread
