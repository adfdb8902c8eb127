// SPDX-License-Identifier: MIT
// Fills, uses and compares all registers of x86-64. For registers.h.
#pragma once
#include <cstddef>
#include <cpuid.h>

#include <cstdint>
#include <cstring>
#include <unistd.h>

extern "C" {
extern uint32_t fiberthread_xsave_mask __attribute__((visibility("hidden")));
extern uint32_t fiberthread_xsave_sizes[3] __attribute__((visibility("hidden")));
extern uint32_t fiberthread_save_by __attribute__((visibility("hidden")));
}

// All registers that a thread can see. The assembly below has the offsets as numbers.
struct alignas(64) Registers {
  uint64_t zmm[32][8];
  uint64_t k[8];
  unsigned char x87[8][16];
  uint64_t red_zone[16];
  uint64_t gpr[16];  // in the order of the assembly; [1] is rcx, the counter: 0 at the end
  uint64_t flags;
  uint32_t mxcsr;
  uint16_t x87_control;
};
static_assert(offsetof(Registers, k) == 2048 && offsetof(Registers, x87) == 2112 && offsetof(Registers, red_zone) == 2240 &&
              offsetof(Registers, gpr) == 2368 && offsetof(Registers, flags) == 2496 && offsetof(Registers, mxcsr) == 2504 &&
              offsetof(Registers, x87_control) == 2508);

enum : uint32_t { kSse = 0, kAvx = 1, kAvx512 = 2 };

// Loads `in`, counts to `rounds` by instructions that touch neither flags nor memory, and then stores the registers to `out`.
extern "C" void preempt_stress(const Registers* in, Registers* out, uint64_t rounds, uint32_t level);
extern "C" const char preempt_stress_end[];

asm(R"(
        .text
        .type preempt_stress, @function
        .globl preempt_stress_end
preempt_stress:
        .cfi_startproc
        .irp reg, rbp, rbx, r12, r13, r14, r15
        push %\reg
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset \reg, 0
        .endr
        # frame: 0 in, 8 out, 16 level, 24 mxcsr, 28 x87 control, 32 flags, 64 red zone, 192 gprs
        sub $328, %rsp
        .cfi_adjust_cfa_offset 328
        mov %rdi, (%rsp)
        mov %rsi, 8(%rsp)
        mov %ecx, 16(%rsp)
        stmxcsr 24(%rsp)
        fnstcw 28(%rsp)

        fninit
        fldcw 2508(%rdi)
        .irp i, 7, 6, 5, 4, 3, 2, 1, 0
        fldt 2112 + 16 * \i(%rdi)
        .endr
        ldmxcsr 2504(%rdi)
        cmp $1, %ecx
        je 11f
        ja 12f
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        movaps 64 * \i(%rdi), %xmm\i
        .endr
        jmp 13f
11:     vzeroall
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        vmovaps 64 * \i(%rdi), %ymm\i
        .endr
        jmp 13f
12:     vzeroall
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
        vmovaps 64 * \i(%rdi), %zmm\i
        .endr
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7
        kmovq 2048 + 8 * \i(%rdi), %k\i
        .endr
13:
        pushq 2496(%rdi)
        popfq
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        mov 2240 + 8 * \i(%rdi), %rax
        mov %rax, -128 + 8 * \i(%rsp)
        .endr
        mov %rdx, %rcx
        mov 2368 + 0(%rdi), %rax
        mov 2368 + 16(%rdi), %rdx
        mov 2368 + 24(%rdi), %rbx
        mov 2368 + 32(%rdi), %rbp
        mov 2368 + 40(%rdi), %rsi
        mov 2368 + 56(%rdi), %r8
        mov 2368 + 64(%rdi), %r9
        mov 2368 + 72(%rdi), %r10
        mov 2368 + 80(%rdi), %r11
        mov 2368 + 88(%rdi), %r12
        mov 2368 + 96(%rdi), %r13
        mov 2368 + 104(%rdi), %r14
        mov 2368 + 112(%rdi), %r15
        mov 2368 + 48(%rdi), %rdi
1:      lea -1(%rcx), %rcx
        jrcxz 2f
        jmp 1b
2:
        mov %rax, 192 + 0(%rsp)
        mov %rcx, 192 + 8(%rsp)
        mov %rdx, 192 + 16(%rsp)
        mov %rbx, 192 + 24(%rsp)
        mov %rbp, 192 + 32(%rsp)
        mov %rsi, 192 + 40(%rsp)
        mov %rdi, 192 + 48(%rsp)
        mov %r8, 192 + 56(%rsp)
        mov %r9, 192 + 64(%rsp)
        mov %r10, 192 + 72(%rsp)
        mov %r11, 192 + 80(%rsp)
        mov %r12, 192 + 88(%rsp)
        mov %r13, 192 + 96(%rsp)
        mov %r14, 192 + 104(%rsp)
        mov %r15, 192 + 112(%rsp)
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        mov -128 + 8 * \i(%rsp), %rax
        mov %rax, 64 + 8 * \i(%rsp)
        .endr
        pushfq
        cld
        pop 32(%rsp)
        mov 8(%rsp), %rdx
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        mov 64 + 8 * \i(%rsp), %rax
        mov %rax, 2240 + 8 * \i(%rdx)
        .endr
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14
        mov 192 + 8 * \i(%rsp), %rax
        mov %rax, 2368 + 8 * \i(%rdx)
        .endr
        mov 32(%rsp), %rax
        mov %rax, 2496(%rdx)
        stmxcsr 2504(%rdx)
        fnstcw 2508(%rdx)
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7
        fstpt 2112 + 16 * \i(%rdx)
        .endr
        cmpl $1, 16(%rsp)
        je 21f
        ja 22f
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        movaps %xmm\i, 64 * \i(%rdx)
        .endr
        jmp 23f
21:
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        vmovaps %ymm\i, 64 * \i(%rdx)
        .endr
        vzeroupper
        jmp 23f
22:
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
        vmovaps %zmm\i, 64 * \i(%rdx)
        .endr
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7
        kmovq %k\i, 2048 + 8 * \i(%rdx)
        .endr
        vzeroall
23:
        fninit
        fldcw 28(%rsp)
        ldmxcsr 24(%rsp)
        add $328, %rsp
        .cfi_adjust_cfa_offset -328
        .irp reg, r15, r14, r13, r12, rbx, rbp
        pop %\reg
        .cfi_adjust_cfa_offset -8
        .cfi_restore \reg
        .endr
        ret
        .cfi_endproc
preempt_stress_end:
        .size preempt_stress, . - preempt_stress
)");

inline uint32_t best_level() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512f")) return kAvx512;
  return __builtin_cpu_supports("avx") ? kAvx : kSse;
}
inline uint32_t any_level(Random&) { return best_level(); }

constexpr uint64_t kFlags = 0xcd5;  // CF PF AF ZF SF DF OF; the others are not the program's

inline void fill(Registers& r, Random& random, Parts parts) {
  memset(&r, 0, sizeof r);
  for (auto& z : r.zmm)
    for (int i = 0; i < (parts == kFull ? 8 : parts == kLowOnly ? 2 : 0); i++) z[i] = random();
  if (parts == kLowOnly) memset(r.zmm[16], 0, sizeof r.zmm - 16 * sizeof r.zmm[0]);
  for (auto& k : r.k) k = parts == kFull ? random() : 0;
  for (auto& x : r.x87) {
    uint64_t mantissa = random() | uint64_t{1} << 63;
    uint16_t exponent = 0x3f00 + random() % 256;
    memcpy(x, &mantissa, 8);
    memcpy(x + 8, &exponent, 2);
  }
  for (auto& w : r.red_zone) w = random();
  for (auto& g : r.gpr) g = random();
  r.gpr[1] = r.gpr[15] = 0;
  r.flags = (random() & kFlags) | 0x202;
  r.mxcsr = 0x1f80 | (random() & 0x603f);  // rounding and sticky flags
  r.x87_control = 0x37f | (random() % 4 << 10);
}

// Returns the name of the registers that differ, or null.
inline const char* difference(const Registers& in, const Registers& out, uint32_t level) {
  size_t width = level == kAvx512 ? 64 : level == kAvx ? 32 : 16;
  for (int i = 0; i < (level == kAvx512 ? 32 : 16); i++)
    if (memcmp(in.zmm[i], out.zmm[i], width)) return i < 16 ? "zmm 0-15" : "zmm 16-31";
  if (level == kAvx512 && memcmp(in.k, out.k, sizeof in.k)) return "k";
  for (int i = 0; i < 8; i++)
    if (memcmp(in.x87[i], out.x87[i], 10)) return "x87";
  if (memcmp(in.red_zone, out.red_zone, sizeof in.red_zone)) return "red zone";
  if (memcmp(in.gpr, out.gpr, 15 * 8)) return "general registers";
  if ((in.flags ^ out.flags) & kFlags) return "flags";
  if (in.mxcsr != out.mxcsr) return "mxcsr";
  if (in.x87_control != out.x87_control) return "x87 control word";
  return nullptr;
}

// Makes preemption save registers as on processors that have no xsavec (1), or not even xsave (2).
inline void save_by(uint32_t how) {
  unsigned a, size = 0, c, d;
  if (how == 1 && __get_cpuid_count(13, 0, &a, &size, &c, &d)) fiberthread_xsave_sizes[2] = (size + 63) & ~63u;
  fiberthread_save_by = how;
}

inline void forget_component(uint32_t component) {
  fiberthread_xsave_mask &= ~component;
  if (fiberthread_xsave_mask == 0) _exit(7);
}
