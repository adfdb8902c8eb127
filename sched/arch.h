// The few things that differ by processor and are one instruction or one register.
#pragma once
#include <ucontext.h>

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

// Of the code that a signal interrupted.
inline uintptr_t interrupted_pc(const ucontext_t* uc) {
#if defined(__x86_64__)
  return static_cast<uintptr_t>(uc->uc_mcontext.gregs[REG_RIP]);
#else
  return uc->uc_mcontext.pc;
#endif
}
inline uintptr_t interrupted_sp(const ucontext_t* uc) {
#if defined(__x86_64__)
  return static_cast<uintptr_t>(uc->uc_mcontext.gregs[REG_RSP]);
#else
  return uc->uc_mcontext.sp;
#endif
}

// A question to valgrind, in the instructions that it knows as one and a processor as nothing (valgrind.h); 0 without it: on how
// many valgrinds does this run?
inline unsigned running_on_valgrind() {
  volatile uint64_t question[6] = {0x1001, 0, 0, 0, 0, 0};
  uint64_t answer = 0;
#if defined(__x86_64__)
  asm volatile("rolq $3, %%rdi\n\trolq $13, %%rdi\n\trolq $61, %%rdi\n\trolq $51, %%rdi\n\txchgq %%rbx, %%rbx"
               : "+d"(answer)
               : "a"(&question[0])
               : "cc", "memory");
#elif defined(__aarch64__)
  register uint64_t x3 asm("x3") = answer;
  register volatile uint64_t* x4 asm("x4") = question;
  asm volatile("ror x12, x12, #3\n\tror x12, x12, #13\n\tror x12, x12, #51\n\tror x12, x12, #61\n\torr x10, x10, x10"
               : "+r"(x3)
               : "r"(x4)
               : "cc", "memory");
  answer = x3;
#endif
  return static_cast<unsigned>(answer);
}

}  // namespace fiberthread
