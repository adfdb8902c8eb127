// SPDX-License-Identifier: MIT
// Functions that are a few instructions.
#pragma once
#include <cstdint>

namespace fiberthread {

inline void cpu_relax() { __builtin_ia32_pause(); }

constexpr uintptr_t kPauseSize = 2;
inline bool is_pause(const unsigned char* code) { return code[0] == 0xf3 && code[1] == 0x90; }

inline uint64_t cycles() { return __builtin_ia32_rdtsc(); }

inline void* thread_pointer() {
  void* tp;
  asm volatile("mov %%fs:0, %0" : "=r"(tp));
  return tp;
}

[[gnu::always_inline]] inline long raw_syscall(long nr, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  long ret;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
  return ret;
}
constexpr uintptr_t kSystemCallSize = 2;
constexpr bool kNoStackHeaderMeansExecutable = true;  // an object without PT_GNU_STACK predates it

inline unsigned running_on_valgrind() {
  volatile uint64_t question[6] = {0x1001, 0, 0, 0, 0, 0};
  uint64_t answer = 0;
  asm volatile("rolq $3, %%rdi\n\trolq $13, %%rdi\n\trolq $61, %%rdi\n\trolq $51, %%rdi\n\txchgq %%rbx, %%rbx"
               : "+d"(answer)
               : "a"(&question[0])
               : "cc", "memory");
  return static_cast<unsigned>(answer);
}

class FloatingEnvironment {
  char x87_[28];
  uint32_t mxcsr_, initial_ = 0x1f80;

 public:
  FloatingEnvironment() {
    asm volatile("fnstenv %0\n\tstmxcsr %1\n\tfninit\n\tldmxcsr %2" : "=m"(x87_), "=m"(mxcsr_) : "m"(initial_) : "memory");
  }
  ~FloatingEnvironment() { asm volatile("fldenv %0\n\tldmxcsr %1" : : "m"(x87_), "m"(mxcsr_) : "memory"); }
};

}  // namespace fiberthread
