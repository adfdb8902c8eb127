// SPDX-License-Identifier: MIT
// Fills, uses and compares all registers of AArch64. For registers.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sys/auxv.h>
#include <ucontext.h>

#include "sched/arch/aarch64/kernel_frame.h"
#include "sched/embedder.h"

// All registers that a thread can see. The assembly below has the offsets as numbers.
struct alignas(64) Registers {
  uint64_t x[31];  // x0 is the counter: 0 at the end
  uint64_t flags;
  uint64_t fpcr, fpsr;
  uint64_t unused[2];
  unsigned char ffr[32];
  unsigned char p[16][32];
  unsigned char unused_too[3264];
  unsigned char z[32][256];
  unsigned char za[256 * 256];
};
static_assert(offsetof(Registers, flags) == 248 && offsetof(Registers, fpcr) == 256 && offsetof(Registers, fpsr) == 264 &&
              offsetof(Registers, ffr) == 288 && offsetof(Registers, p) == 320 && offsetof(Registers, z) == 4096 &&
              offsetof(Registers, za) == 12288);

// The extensions that are used. With kSme, the code runs in streaming mode, with ZA in use.
enum : uint32_t { kNeon = 0, kSve = 1, kSme = 2 };

// Loads `in`, counts to `rounds` by instructions that touch neither flags nor memory, and then stores the registers to `out`.
extern "C" void preempt_stress(const Registers* in, Registers* out, uint64_t rounds, uint32_t level);
extern "C" const char preempt_stress_end[];

asm(R"(
        .arch armv8.2-a+sve
        .arch_extension sme
        .text
        .type preempt_stress, %function
        .globl preempt_stress_end
preempt_stress:
        .cfi_startproc
        # frame: 0 fp, lr, 16 x19 to x28, 96 d8 to d15, 160 x18, 168 fpcr, 176 fpsr, 184 out, 192 level, 200 rounds, 208 x0, 216 x1
        sub sp, sp, #224
        .cfi_adjust_cfa_offset 224
        stp x29, x30, [sp]
        .cfi_rel_offset x29, 0
        .cfi_rel_offset x30, 8
        .irp i, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28
        str x\i, [sp, #16 + (\i - 19) * 8]
        .cfi_rel_offset x\i, 16 + (\i - 19) * 8
        .endr
        .irp i, 8, 9, 10, 11, 12, 13, 14, 15
        str d\i, [sp, #96 + (\i - 8) * 8]
        .endr
        mrs x4, fpcr
        mrs x5, fpsr
        stp x18, x4, [sp, #160]
        stp x5, x1, [sp, #176]
        stp x3, x2, [sp, #192]

        cmp x3, #1
        b.eq 11f
        b.hi 12f
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
        ldr q\i, [x0, #4096 + 256 * \i]
        .endr
        b 13f
12:     smstart
        rdsvl x4, #1
        add x5, x0, #12288
        mov w12, #0
1:      ldr za[w12, 0], [x5]
        add x5, x5, x4
        add w12, w12, #1
        cmp w12, w4
        b.ne 1b
        b 1f
11:     add x5, x0, #288
        ldr p0, [x5]
        wrffr p0.b
1:      .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        add x5, x0, #320 + 32 * \i
        ldr p\i, [x5]
        .endr
        add x5, x0, #4096
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
        ldr z\i, [x5]
        add x5, x5, #256
        .endr
13:
        ldr x4, [x0, #256]
        msr fpcr, x4
        ldr x4, [x0, #264]
        msr fpsr, x4
        ldr x4, [x0, #248]
        msr nzcv, x4
        .irp i, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30
        ldr x\i, [x0, #8 * \i]
        .endr
        ldr x0, [sp, #200]
1:      sub x0, x0, #1
        cbnz x0, 1b

        stp x0, x1, [sp, #208]
        ldr x0, [sp, #184]
        .irp i, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30
        str x\i, [x0, #8 * \i]
        .endr
        ldp x2, x3, [sp, #208]
        stp x2, x3, [x0]
        mrs x4, nzcv
        str x4, [x0, #248]
        mrs x4, fpcr
        mrs x5, fpsr
        stp x4, x5, [x0, #256]
        ldr x3, [sp, #192]
        cmp x3, #1
        b.eq 21f
        b.hi 21f
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
        str q\i, [x0, #4096 + 256 * \i]
        .endr
        b 23f
21:     add x5, x0, #4096
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
        str z\i, [x5]
        add x5, x5, #256
        .endr
        .irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        add x5, x0, #320 + 32 * \i
        str p\i, [x5]
        .endr
        b.hi 22f
        rdffr p0.b
        add x5, x0, #288
        str p0, [x5]
        b 23f
22:     rdsvl x4, #1
        add x5, x0, #12288
        mov w12, #0
1:      str za[w12, 0], [x5]
        add x5, x5, x4
        add w12, w12, #1
        cmp w12, w4
        b.ne 1b
        smstop
23:
        ldp x18, x4, [sp, #160]
        msr fpcr, x4
        ldr x5, [sp, #176]
        msr fpsr, x5
        .irp i, 8, 9, 10, 11, 12, 13, 14, 15
        ldr d\i, [sp, #96 + (\i - 8) * 8]
        .endr
        .irp i, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28
        ldr x\i, [sp, #16 + (\i - 19) * 8]
        .cfi_restore x\i
        .endr
        ldp x29, x30, [sp]
        .cfi_restore x29
        .cfi_restore x30
        add sp, sp, #224
        .cfi_adjust_cfa_offset -224
        ret
        .cfi_endproc
preempt_stress_end:
        .size preempt_stress, . - preempt_stress
)");

constexpr uint64_t kHwcapSve = 1 << 22, kHwcap2Sme = 1 << 23;

inline uint32_t best_level() {
  if (getauxval(AT_HWCAP2) & kHwcap2Sme) return kSme;
  return getauxval(AT_HWCAP) & kHwcapSve ? kSve : kNeon;
}
inline uint32_t any_level(Random& random) { return static_cast<uint32_t>(random() % (best_level() + 1)); }

__attribute__((target("+sve"))) inline size_t sve_bytes() {
  size_t n;
  asm("cntb %0" : "=r"(n));
  return n;
}
inline size_t streaming_bytes() {
  size_t n;
  asm(".arch_extension sme\n\trdsvl %0, #1" : "=r"(n));
  return n;
}
inline size_t vector_bytes(uint32_t level) { return level == kSme ? streaming_bytes() : level == kSve ? sve_bytes() : 16; }

constexpr uint64_t kFpcr = 0x7c00000, kFpsr = 0x0800009f;  // fpcr: rounding, flush to zero, half precision; fpsr: sticky flags
constexpr uint64_t kNzcv = 0xf0000000;

inline void fill(Registers& r, Random& random, Parts parts) {
  auto fill_bytes = [&](void* to, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
      uint64_t v = random();
      memcpy(static_cast<char*>(to) + i, &v, 8);
    }
  };
  memset(&r, 0, sizeof r);
  for (auto& x : r.x) x = random();
  r.x[0] = 0;
  r.flags = random() & kNzcv;
  r.fpcr = random() & kFpcr;
  r.fpsr = random() & kFpsr;
  if (parts == kZero) return;
  for (auto& z : r.z) fill_bytes(z, parts == kFull ? sizeof z : 16);
  if (parts == kLowOnly) return;
  fill_bytes(r.p, sizeof r.p);
  fill_bytes(r.za, sizeof r.za);
  // ffr can only have its lowest bits set, as many as there are without a gap.
  for (size_t n = random() % (8 * sizeof r.ffr), i = 0; i < n; i++) r.ffr[i / 8] |= static_cast<unsigned char>(1u << i % 8);
}

// Returns the name of the registers that differ, or null.
inline const char* difference(const Registers& in, const Registers& out, uint32_t level) {
  size_t width = vector_bytes(level);
  if (memcmp(in.x, out.x, sizeof in.x)) return "general registers";
  if (in.flags != out.flags) return "flags";
  if (in.fpcr != out.fpcr) return "fpcr";
  if (in.fpsr != out.fpsr) return "fpsr";
  for (int i = 0; i < 32; i++)
    if (memcmp(in.z[i], out.z[i], width)) return memcmp(in.z[i], out.z[i], 16) ? "vectors" : "upper parts of vectors";
  if (level == kNeon) return nullptr;
  for (int i = 0; i < 16; i++)
    if (memcmp(in.p[i], out.p[i], width / 8)) return "predicates";
  if (level == kSve && memcmp(in.ffr, out.ffr, width / 8)) return "ffr";
  if (level == kSme && memcmp(in.za, out.za, width * width)) return "za";
  return nullptr;
}

// The library keeps the registers that the kernel has saved. A test of a library that forgets some spoils that part of the copy.
enum : uint32_t { kGeneral = 1, kCondition, kControl, kStatus, kVectors, kUpper, kPredicates, kFfr, kZa };
inline void (*inject_right)(void*, void (*)());
inline uint32_t forgotten;

inline void forget_component(uint32_t component) {
  fiberthread::Embedder table = fiberthread::embedder();
  inject_right = table.inject;
  forgotten = component;
  table.inject = [](void* context, void (*fn)()) {
    inject_right(context, fn);
    auto* uc = reinterpret_cast<ucontext_t*>(static_cast<ucontext_t*>(context)->uc_mcontext.sp + sizeof(siginfo_t));
    auto& m = uc->uc_mcontext;
    if (forgotten == kGeneral) m.regs[18] ^= 1;
    if (forgotten == kCondition) m.pstate ^= kNzcv;
    auto spoil = [](fiberthread::SavedRecord* r) {
      char* p = reinterpret_cast<char*>(r);
      uint16_t vl;  // of SVE and ZA
      memcpy(&vl, p + 8, sizeof vl);
      if (r->magic == FPSIMD_MAGIC) {
        auto* f = reinterpret_cast<fpsimd_context*>(r);
        if (forgotten == kStatus) f->fpsr ^= 1;
        if (forgotten == kControl) f->fpcr ^= 1 << 22;
        if (forgotten == kVectors) f->vregs[17] ^= 1;
      }
      size_t z = 16, predicates = z + 32 * size_t{vl}, ffr = predicates + 16 * size_t{vl} / 8;
      if (r->magic == fiberthread::kSavedSve && r->size > z) {
        if (forgotten == kVectors) p[z + 17 * vl] ^= 1;
        if (forgotten == kUpper) p[z + 17 * vl + 16] ^= 1;
        if (forgotten == kPredicates) p[predicates + 3 * vl / 8] ^= 1;
        if (forgotten == kFfr) memset(p + ffr, 0, vl / 8);
      }
      if (r->magic == fiberthread::kSavedZa && r->size > z && forgotten == kZa) p[z] ^= 1;
    };
    fiberthread::for_saved_records(uc, spoil);
    if (auto* extra = fiberthread::saved_extra(uc))
      for (auto* r = reinterpret_cast<fiberthread::SavedRecord*>(extra->data); r->magic;
           r = reinterpret_cast<fiberthread::SavedRecord*>(reinterpret_cast<char*>(r) + r->size))
        spoil(r);
  };
  fiberthread::sched_embed(table);
}
