// Preemption: code that keeps every register busy must not notice it.
#include "sched/preempt.h"

#include "tests/test.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#if defined(__aarch64__)
#include "sched/arch/aarch64/kernel_frame.h"
#endif
#include "sched/embedder.h"
#include "sched/fiber.h"
#include "sched/syscall.h"
#include "sched/worker.h"

#if defined(__x86_64__)
extern "C" uint32_t fiberthread_xsave_mask __attribute__((visibility("hidden")));
extern "C" void fiberthread_trampoline() __attribute__((visibility("hidden")));
extern "C" const char fiberthread_trampoline_end[] __attribute__((visibility("hidden")));
#endif

namespace {

struct Random {
  uint64_t x;
  uint64_t operator()() {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
  }
};

// All of each vector register, or the upper parts zero, or all: "initial" to the processor, so not saved.
enum Parts : uint32_t { kFull, kLowOnly, kZero };

#if defined(__x86_64__)

// All that a thread sees of its registers. The assembly below has the offsets typed in.
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

// Loads `in`, counts to `rounds` by instructions that touch neither flags nor memory, and stores what it then finds.
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

uint32_t best_level() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512f")) return kAvx512;
  return __builtin_cpu_supports("avx") ? kAvx : kSse;
}
uint32_t any_level(Random&) { return best_level(); }

constexpr uint64_t kFlags = 0xcd5;        // CF PF AF ZF SF DF OF; the others are not the program's

void fill(Registers& r, Random& random, Parts parts) {
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
  r.mxcsr = 0x1f80 | (random() & 0x603f);         // rounding and sticky flags
  r.x87_control = 0x37f | (random() % 4 << 10);
}

// The name of what differs, or null.
const char* difference(const Registers& in, const Registers& out, uint32_t level) {
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

void forget_component(uint32_t component) {
  fiberthread_xsave_mask &= ~component;
  if (fiberthread_xsave_mask == 0) _exit(7);
}

#else

// ---- AArch64 ----

// All that a thread sees of its registers. The assembly below has the offsets typed in.
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
              offsetof(Registers, ffr) == 288 && offsetof(Registers, p) == 320 && offsetof(Registers, z) == 4096 && offsetof(Registers, za) == 12288);

// With kSme in streaming mode, with ZA in use.
enum : uint32_t { kNeon = 0, kSve = 1, kSme = 2 };

// Loads `in`, counts to `rounds` by instructions that touch neither flags nor memory, and stores what it then finds.
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

uint32_t best_level() {
  if (getauxval(AT_HWCAP2) & kHwcap2Sme) return kSme;
  return getauxval(AT_HWCAP) & kHwcapSve ? kSve : kNeon;
}
uint32_t any_level(Random& random) { return static_cast<uint32_t>(random() % (best_level() + 1)); }

__attribute__((target("+sve"))) size_t sve_bytes() {
  size_t n;
  asm("cntb %0" : "=r"(n));
  return n;
}
size_t streaming_bytes() {
  size_t n;
  asm(".arch_extension sme\n\trdsvl %0, #1" : "=r"(n));
  return n;
}
size_t vector_bytes(uint32_t level) { return level == kSme ? streaming_bytes() : level == kSve ? sve_bytes() : 16; }

constexpr uint64_t kFpcr = 0x7c00000, kFpsr = 0x0800009f;  // rounding, flush to zero, the half precision; what has happened
constexpr uint64_t kNzcv = 0xf0000000;

void fill(Registers& r, Random& random, Parts parts) {
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
  // Bits from the lowest on: others it cannot have.
  for (size_t n = random() % (8 * sizeof r.ffr), i = 0; i < n; i++) r.ffr[i / 8] |= static_cast<unsigned char>(1u << i % 8);
}

// The name of what differs, or null.
const char* difference(const Registers& in, const Registers& out, uint32_t level) {
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

// What the library keeps is what the kernel has saved. So forgetting means to spoil a part of the copy.
enum : uint32_t { kGeneral = 1, kCondition, kControl, kStatus, kVectors, kUpper, kPredicates, kFfr, kZa };
void (*inject_right)(void*, void (*)());
uint32_t forgotten;

void forget_component(uint32_t component) {
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

#endif

uint64_t now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

std::atomic<uint64_t> rounds_done, bad, times_preempted;
std::atomic<const char*> what_differed;
uint64_t deadline;
std::atomic<uint64_t> next_seed{0x9e3779b97f4a7c15};

void* stress(void*) {
  Random random{next_seed.fetch_add(0x632be59bd9b4e019)};
  auto *in = new Registers, *out = new Registers;
  while (now_ms() < deadline) {
    uint32_t level = any_level(random);
    fill(*in, random, static_cast<Parts>(random() % 3));
    preempt_stress(in, out, 1'000'000 + random() % 4'000'000, level);
    if (const char* what = difference(*in, *out, level)) {
      bad++;
      what_differed = what;
    }
    rounds_done++;
  }
  delete in;
  delete out;
  if (auto* f = fiberthread::tls_current) times_preempted += f->preempted;
  return nullptr;
}

void run(int threads, uint64_t ms) {
  deadline = now_ms() + ms;
  pthread_t t[64];
  for (int i = 0; i < threads; i++) cr_assert_eq(pthread_create(&t[i], nullptr, stress, nullptr), 0);
  for (int i = 0; i < threads; i++) pthread_join(t[i], nullptr);
}

// Many more than slots: a few fibers that only compute would get a slot each, and nobody would stop them.
int many() { return 16 * static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)) > 64 ? 64 : 16 * sysconf(_SC_NPROCESSORS_ONLN); }

// Runs as long as asked by FIBERTHREAD_TEST_SECONDS, for soaking.
uint64_t duration_ms() {
  const char* s = getenv("FIBERTHREAD_TEST_SECONDS");
  return s ? strtoull(s, nullptr, 10) * 1000 : 2000;
}

Test(preempt, no_register_changes) {
  for (int i = 0; i < 5 && times_preempted <= 20; i++) run(many(), duration_ms());
  fprintf(stderr, "%lu rounds, %lu preemptions\n", rounds_done.load(), times_preempted.load());
  cr_assert_eq(bad.load(), 0u, "%s", what_differed.load());
  cr_assert(rounds_done > 0);
  cr_assert(times_preempted > 20, "preempted %lu times", times_preempted.load());
}

// The test itself is tested: forgetting one component must be seen. A crash counts, as vector registers carry
// everybody's data.
void forget(uint32_t component, uint32_t level) {
  if (best_level() < level) return;
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    run(1, 1);  // starts the scheduler
    forget_component(component);
    for (int i = 0; i < 10 && !bad; i++) run(many(), 1000);
    _exit(bad ? 1 : 0);
  }
  int status;
  waitpid(child, &status, 0);
  bool crashed = WIFSIGNALED(status) && WTERMSIG(status) != SIGALRM;
  cr_assert(crashed || (WIFEXITED(status) && WEXITSTATUS(status) == 1), "component %#x: status %#x", component, status);
}

#if defined(__x86_64__)
Test(preempt, forgetting_x87_is_noticed) { forget(0x1, kSse); }
Test(preempt, forgetting_sse_is_noticed) { forget(0x2, kSse); }
Test(preempt, forgetting_avx_is_noticed) { forget(0x4, kAvx); }
Test(preempt, forgetting_k_is_noticed) { forget(0x20, kAvx512); }
Test(preempt, forgetting_upper_halves_of_zmm_is_noticed) { forget(0x40, kAvx512); }
Test(preempt, forgetting_zmm_16_to_31_is_noticed) { forget(0x80, kAvx512); }
#else
Test(preempt, forgetting_general_registers_is_noticed) { forget(kGeneral, kNeon); }
Test(preempt, forgetting_flags_is_noticed) { forget(kCondition, kNeon); }
Test(preempt, forgetting_fpcr_is_noticed) { forget(kControl, kNeon); }
Test(preempt, forgetting_fpsr_is_noticed) { forget(kStatus, kNeon); }
Test(preempt, forgetting_vectors_is_noticed) { forget(kVectors, kNeon); }
Test(preempt, forgetting_upper_parts_of_vectors_is_noticed) { forget(kUpper, kSve); }
Test(preempt, forgetting_predicates_is_noticed) { forget(kPredicates, kSve); }
Test(preempt, forgetting_ffr_is_noticed) { forget(kFfr, kSve); }
Test(preempt, forgetting_za_is_noticed) { forget(kZa, kSme); }
#endif

// ---- more often than every tick ----

double cpu_ms() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

// How often per millisecond of CPU time; a tick of 4 ms gives a quarter.
double preemption_rate() {
  double best = 0;
  for (int i = 0; i < 5 && best <= 1; i++) {
    times_preempted = 0;
    double before = cpu_ms();
    run(many(), 500);
    double rate = static_cast<double>(times_preempted) / (cpu_ms() - before);
    if (rate > best) best = rate;
  }
  return best;
}

bool mentioned(const char* file, const char* what) {
  FILE* f = fopen(file, "r");
  char line[512];
  bool found = false;
  while (f && fgets(line, sizeof line, f)) found |= strstr(line, what) != nullptr;
  if (f) fclose(f);
  return found;
}

bool has_descriptor_of(const char* what) {
  char path[32], to[256];
  for (int fd = 0; fd < 1024; fd++) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, to, sizeof to - 1);
    if (n > 0 && (to[n] = 0, strstr(to, what))) return true;
  }
  return false;
}

constexpr int kRefused = 77;

// The exit status of a child of fork, whose workers are all new; and that of its own child, which must have nothing of them.
int samples(bool has_child) {
  if (mentioned("/proc/self/maps", "perf_event")) return 2;
  uint32_t parents = fiberthread::preempt_sampled_workers();
  double rate = preemption_rate();
  if (fiberthread::preempt_sampled_workers() == parents) return kRefused;
  if (bad) return 3;
  if (rate <= 1) return 4;
  if (has_descriptor_of("perf_event")) return 5;
  if (!mentioned("/proc/self/maps", "perf_event")) return 6;
  if (!has_child) return 0;
  pid_t child = fork();
  if (child == 0) _exit(samples(false));
  int status;
  waitpid(child, &status, 0);
  return status ? 7 : 0;
}

// In a child, as the test's frame has workers already.
Test(preempt, more_often_than_the_tick) {
  fiberthread::options.preempt_us = 100;
  pid_t child = fork();
  if (child == 0) _exit(samples(true));
  int status;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kRefused) cr_skip("the kernel refuses perf events here");
  cr_assert_eq(status, 0, "%#x", status);
}

Test(preempt, at_the_tick_where_perf_events_are_refused) {
  rlimit now, none;
  getrlimit(RLIMIT_NOFILE, &now);
  none = {0, now.rlim_max};
  int out[2];
  cr_assert_eq(pipe2(out, O_NONBLOCK), 0);
  int saved = dup(2);
  dup2(out[1], 2);
  cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
  // Not before: a worker of the frame's may begin at any time, and only the first refusal is told.
  fiberthread::options.verbose = true;
  fiberthread::options.preempt_us = 100;
  fiberthread::sched_set_concurrency(6);  // more workers than the frame may have made before
  for (int i = 0; i < 5 && times_preempted <= 20; i++) run(many(), 1000);
  uint32_t sampled = fiberthread::preempt_sampled_workers();  // now: a spare worker may begin later
  setrlimit(RLIMIT_NOFILE, &now);
  dup2(saved, 2);
  cr_assert_eq(sampled, 0u);
  cr_assert(times_preempted > 20, "preempted %lu times", times_preempted.load());
  char said[1024] = {};
  ssize_t n = read(out[0], said, sizeof said - 1);
  const char* once = strstr(said, "FIBERTHREAD_PREEMPT_US: ");
  cr_assert(n > 0 && once && !strstr(once + 1, "FIBERTHREAD_PREEMPT_US: "), "%zd: %s", n, said);
}

// ---- a loop inside libc, which is refused for some ticks only ----

std::atomic<bool> other_ran;
#if defined(__x86_64__)
constexpr int kSearches = 1000;
#else
constexpr int kSearches = 20;  // under an emulator
#endif

Test(preempt, loop_inside_libc_is_preempted_in_the_end) {
  static char big[1 << 20];
  pthread_t t[64];
  int n = many() / 2;
  deadline = now_ms() + 500;
  for (int i = 0; i < n; i++)
    pthread_create(&t[i], nullptr, +[](void*) -> void* {
      while (!other_ran && now_ms() < deadline + 20000)
        for (int j = 0; j < kSearches; j++) {
          asm volatile("" ::: "memory");
          cr_assert(memchr(big, 1, sizeof big) == nullptr);
        }
      return nullptr;
    }, nullptr);
  pthread_t other;
  pthread_create(&other, nullptr, +[](void*) -> void* {
    while (now_ms() < deadline) {}
    other_ran = true;
    return nullptr;
  }, nullptr);
  pthread_join(other, nullptr);
  for (int i = 0; i < n; i++) pthread_join(t[i], nullptr);
  cr_assert(now_ms() < deadline + 20000);
}

// ---- inject_call ----

void with_signal_stack() {
  stack_t now;
  sigaltstack(nullptr, &now);  // a worker has one; the thread of a pass-through does not
  if (!(now.ss_flags & SS_DISABLE)) return;
  static char alternate[256 * 1024];
  stack_t ss = {alternate, 0, sizeof alternate};
  sigaltstack(&ss, nullptr);
}

void (*to_inject)();
bool injected;
int calls;

// Pokes that are not ours are the library's.
void (*poked_right)(siginfo_t*, void*);
[[gnu::constructor]] void see_pokes() {
  fiberthread::Embedder table = fiberthread::embedder();
  poked_right = table.poked;
  table.poked = [](siginfo_t* info, void* uc) {
    if (!to_inject) poked_right(info, uc);
    else if (info->si_code == SI_TKILL) injected = fiberthread::inject_call(uc, to_inject);
  };
  fiberthread::sched_embed(table);
}

// The kernel thread that we are on pokes itself; the signal comes at the end of the system call.
void poke(void (*fn)()) {
  to_inject = fn;
  injected = false;
  fiberthread::raw_syscall(SYS_tgkill, getpid(), fiberthread::raw_syscall(SYS_gettid), fiberthread::kPreemptSignal);
  to_inject = nullptr;
}

void* inject_returning(void*) {
  with_signal_stack();
  double x = 1.25;
  long long y = 77;
  poke([] { calls++; });
  cr_assert(injected);
  cr_assert_eq(calls, 1);
  cr_assert(x == 1.25 && y == 77);
  {
    fiberthread::Busy busy;
    poke([] { calls++; });
    cr_assert(!injected);
  }
  cr_assert_eq(calls, 1);
  return nullptr;
}

Test(preempt, injected_call_returns_to_where_it_was) {
  pthread_t t;
  pthread_create(&t, nullptr, inject_returning, nullptr);
  pthread_join(t, nullptr);
  cr_assert_eq(calls, 1);
}

int cleaned;

void* inject_exiting(void*) {
  with_signal_stack();
  pthread_cleanup_push(+[](void*) { cleaned++; }, nullptr);
  void (*volatile may_throw)(void (*)()) = poke;  // for all the compiler knows: else the call has no landing pad
  may_throw([] { pthread_exit(&cleaned); });
  pthread_cleanup_pop(0);
  return nullptr;
}

Test(preempt, injected_call_may_exit_the_thread) {
  pthread_t t;
  void* result;
  pthread_create(&t, nullptr, inject_exiting, nullptr);
  pthread_join(t, &result);
  cr_assert_eq(result, static_cast<void*>(&cleaned));
  cr_assert_eq(cleaned, 1);
}

// ---- unwinding ----

struct Walk {
  bool found = false, registers = false;
};
Registers walk_in, walk_out;
int steps, bad_walks, walks;
bool called_right;

#if defined(__x86_64__)
bool has_registers(_Unwind_Context* c) {
  constexpr int kRbx = 3, kRbp = 6;  // DWARF's numbers
  bool right = _Unwind_GetGR(c, kRbx) == walk_in.gpr[3] && _Unwind_GetGR(c, kRbp) == walk_in.gpr[4];
  for (int i = 12; i <= 15; i++) right = right && _Unwind_GetGR(c, i) == walk_in.gpr[i - 1];
  return right;
}
#else
bool has_registers(_Unwind_Context* c) {
  bool right = true;
  for (int i = 1; i < 31; i++) right = right && _Unwind_GetGR(c, i) == walk_in.x[i];
  return right;
}
#endif

_Unwind_Reason_Code look(_Unwind_Context* c, void* data) {
  auto& w = *static_cast<Walk*>(data);
  int before;
  uintptr_t pc = _Unwind_GetIPInfo(c, &before);
  if (pc - reinterpret_cast<uintptr_t>(&preempt_stress) <
      reinterpret_cast<uintptr_t>(preempt_stress_end) - reinterpret_cast<uintptr_t>(&preempt_stress)) {
    w.found = before;  // an interrupted pc, not a return address
    w.registers = has_registers(c);
  }
  return _URC_NO_REASON;
}

void walk(long where) {
  Walk w;
  _Unwind_Backtrace(look, &w);
  walks++;
  if ((w.found && w.registers) || where == -2) return;
  bad_walks++;
  fprintf(stderr, "trampoline + %#lx: found %d, registers %d\n", where, w.found, w.registers);
}

#if defined(__x86_64__)
// What the ABI promises to every function.
void check_called_state() {
  uint64_t flags;
  asm volatile("pushfq; pop %0" : "=r"(flags));
  uint32_t environment[7];
  asm volatile("fnstenv %0; fldenv %0" : "=m"(environment));
  called_right = !(flags & 0x400) && (environment[2] & 0xffff) == 0xffff && (environment[0] & 0xffff) == walk_in.x87_control;
}

// One tick into the counting loop injects a call and turns single-stepping on; each step in the trampoline is looked at.
void on_alarm(int, siginfo_t*, void* context) {
  auto& regs = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (fiberthread::inject_call(context, [] { check_called_state(); walk(-1); })) {
    injected = true;
    regs[REG_EFL] |= 0x100;
  }
}

void on_step(int, siginfo_t*, void* context) {
  auto& regs = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  uintptr_t pc = regs[REG_RIP], low = reinterpret_cast<uintptr_t>(&fiberthread_trampoline);
  if (pc - low < reinterpret_cast<uintptr_t>(fiberthread_trampoline_end) - low) {
    steps++;
    walk(pc - low);
  } else if (pc - reinterpret_cast<uintptr_t>(&preempt_stress) <
             reinterpret_cast<uintptr_t>(preempt_stress_end) - reinterpret_cast<uintptr_t>(&preempt_stress)) {
    regs[REG_EFL] &= ~0x100;  // back
  }
}
#else
// What the ABI promises to every function. Another state of the vectors would not even let it be called.
void check_called_state() {
  uint64_t svcr = 0, control;
  if (best_level() >= kSme) asm volatile("mrs %0, s3_3_c4_c2_2" : "=r"(svcr));
  asm volatile("mrs %0, fpcr" : "=r"(control));
  called_right = svcr == 0 && control == walk_in.fpcr;
}

// One tick into the counting loop injects a call.
void on_alarm(int, siginfo_t*, void* context) {
  if (fiberthread::inject_call(context, [] { check_called_state(); walk(-1); })) injected = true;
}
#endif

void* walk_thread(void*) {
  with_signal_stack();
  Random random{12345};
  fill(walk_in, random, kFull);
#if defined(__x86_64__)
  walk_in.flags |= 0x400;  // counts down in string instructions
#endif
  walk(-2);  // binds its symbols
  walks = 0;
  injected = false;
  // The kernel's, on this kernel thread: sigaction()'s would be run where the library wants.
#if defined(__x86_64__)
  fiberthread::install_kernel_handler(SIGTRAP, on_step);
#endif
  fiberthread::install_kernel_handler(SIGUSR1, on_alarm);
  for (int i = 0; i < 20 && !injected; i++) {
    // The kernel's own timer, on the CPU clock of this kernel thread.
    sigevent event = {};
    event.sigev_signo = SIGUSR1;
    event.sigev_notify = SIGEV_THREAD_ID;
    event._sigev_un._tid = fiberthread::raw_syscall(SYS_gettid);
    int timer;
    fiberthread::raw_syscall(SYS_timer_create, CLOCK_THREAD_CPUTIME_ID, fiberthread::arg(&event), fiberthread::arg(&timer));
    itimerspec once = {{0, 0}, {0, 2'000'000}};
    fiberthread::raw_syscall(SYS_timer_settime, timer, 0, fiberthread::arg(&once), 0);
    preempt_stress(&walk_in, &walk_out, 60'000'000, best_level());
    fiberthread::raw_syscall(SYS_timer_delete, timer);
  }
  return nullptr;
}

#if defined(__x86_64__)
constexpr int kLeastSteps = 60;
#else
constexpr int kLeastSteps = 0;  // all that the interrupted code has is on the stack before anything else runs
#endif

Test(preempt, unwinds_from_each_instruction_of_the_trampoline) {
  pthread_t t;
  pthread_create(&t, nullptr, walk_thread, nullptr);
  pthread_join(t, nullptr);
  cr_assert(injected);
  cr_assert(steps >= kLeastSteps, "%d steps", steps);
  cr_assert_eq(walks, steps + 1);
  cr_assert(called_right);
  cr_assert_eq(bad_walks, 0);
  cr_assert(!difference(walk_in, walk_out, best_level()), "%s", difference(walk_in, walk_out, best_level()));
}

}  // namespace
