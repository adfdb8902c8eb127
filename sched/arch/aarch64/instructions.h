// SPDX-License-Identifier: MIT
// Functions that are a few instructions.
#pragma once
#include <cstdint>

namespace fiberthread {

inline void cpu_relax() {
  asm volatile("isb" ::: "memory");  // takes longer than yield, which most cores ignore
}

constexpr uintptr_t kPauseSize = 4;
inline bool is_pause(const unsigned char* code) {
  constexpr uint32_t kYield = 0xd503203f, kWfe = 0xd503205f, kIsb = 0xd5033fdf;
  uint32_t word;
  __builtin_memcpy(&word, code, sizeof word);
  return word == kYield || word == kWfe || word == kIsb;
}

inline uint64_t cycles() {
  uint64_t v;
  asm volatile("mrs %0, cntvct_el0" : "=r"(v));
  return v;
}

inline void* thread_pointer() {
  void* tp;
  asm volatile("mrs %0, tpidr_el0" : "=r"(tp));
  return tp;
}

[[gnu::always_inline]] inline long raw_syscall(long nr, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  register long x8 asm("x8") = nr;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
}
constexpr uintptr_t kSystemCallSize = 4;
constexpr bool kNoStackHeaderMeansExecutable = false;

inline unsigned running_on_valgrind() {
  volatile uint64_t question[6] = {0x1001, 0, 0, 0, 0, 0};
  uint64_t answer = 0;
  register uint64_t x3 asm("x3") = answer;
  register volatile uint64_t* x4 asm("x4") = question;
  asm volatile("ror x12, x12, #3\n\tror x12, x12, #13\n\tror x12, x12, #51\n\tror x12, x12, #61\n\torr x10, x10, x10"
               : "+r"(x3)
               : "r"(x4)
               : "cc", "memory");
  answer = x3;
  return static_cast<unsigned>(answer);
}

class FloatingEnvironment {
  uint64_t fpcr_, fpsr_;

 public:
  FloatingEnvironment() { asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=&r"(fpcr_), "=&r"(fpsr_) : : "memory"); }
  ~FloatingEnvironment() { asm volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(fpcr_), "r"(fpsr_) : "memory"); }
};

}  // namespace fiberthread
