// SPDX-License-Identifier: MIT
// The context switch itself, without a scheduler. Runs on both architectures.
// alone: sched
#include "sched/arch/context.h"

#include <cfenv>
#include <csignal>
#include <cstdint>
#include <execinfo.h>
#include <unwind.h>

#include "sched/arch/arch.h"
#include "tests/test.h"

using namespace fiberthread;

// uint64_t fill_switch_check(Context* from, Context* to, uint64_t seed): fills every callee-saved register with a value
// made from seed, switches, and returns 0 if all of them have their values again.
extern "C" uint64_t fill_switch_check(Context* from, Context* to, uint64_t seed);
extern "C" const char fill_switch_check_end[];

#if defined(__x86_64__)
asm(R"(
        .text
        .type fill_switch_check, @function
        .globl fill_switch_check, fill_switch_check_end
fill_switch_check:
        .cfi_startproc
        .irp reg, rbp, rbx, r12, r13, r14, r15
        push %\reg
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset \reg, 0
        .endr
        push %rdx
        .cfi_adjust_cfa_offset 8
        lea 1(%rdx), %rbp
        lea 2(%rdx), %rbx
        lea 3(%rdx), %r12
        lea 4(%rdx), %r13
        lea 5(%rdx), %r14
        lea 6(%rdx), %r15
        call fiberthread_switch
        pop %rdx
        .cfi_adjust_cfa_offset -8
        xor %eax, %eax
        .irp reg, rbp, rbx, r12, r13, r14, r15
        inc %rdx
        xor %rdx, %\reg
        or %\reg, %rax
        .endr
        .irp reg, r15, r14, r13, r12, rbx, rbp
        pop %\reg
        .cfi_adjust_cfa_offset -8
        .cfi_restore \reg
        .endr
        ret
        .cfi_endproc
fill_switch_check_end:
        .size fill_switch_check, . - fill_switch_check
)");
#else
asm(R"(
        .text
        .type fill_switch_check, %function
        .globl fill_switch_check, fill_switch_check_end
fill_switch_check:
        .cfi_startproc
        stp x29, x30, [sp, #-176]!
        .cfi_adjust_cfa_offset 176
        .cfi_rel_offset x29, 0
        .cfi_rel_offset x30, 8
        stp x19, x20, [sp, #16]
        stp x21, x22, [sp, #32]
        stp x23, x24, [sp, #48]
        stp x25, x26, [sp, #64]
        stp x27, x28, [sp, #80]
        stp d8, d9, [sp, #96]
        stp d10, d11, [sp, #112]
        stp d12, d13, [sp, #128]
        stp d14, d15, [sp, #144]
        str x2, [sp, #160]
        .irp n, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29
        add x\n, x2, #\n
        .endr
        .irp n, 8, 9, 10, 11, 12, 13, 14, 15
        add x3, x2, #100 + \n
        fmov d\n, x3
        .endr
        bl fiberthread_switch
        ldr x2, [sp, #160]
        mov x0, #0
        .irp n, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29
        add x4, x2, #\n
        eor x3, x\n, x4
        orr x0, x0, x3
        .endr
        .irp n, 8, 9, 10, 11, 12, 13, 14, 15
        fmov x3, d\n
        add x4, x2, #100 + \n
        eor x3, x3, x4
        orr x0, x0, x3
        .endr
        ldp x19, x20, [sp, #16]
        ldp x21, x22, [sp, #32]
        ldp x23, x24, [sp, #48]
        ldp x25, x26, [sp, #64]
        ldp x27, x28, [sp, #80]
        ldp d8, d9, [sp, #96]
        ldp d10, d11, [sp, #112]
        ldp d12, d13, [sp, #128]
        ldp d14, d15, [sp, #144]
        ldp x29, x30, [sp], #176
        .cfi_adjust_cfa_offset -176
        .cfi_restore x29
        .cfi_restore x30
        ret
        .cfi_endproc
fill_switch_check_end:
        .size fill_switch_check, . - fill_switch_check
)");
#endif

namespace {

constexpr size_t kStack = 256 * 1024;
alignas(16) char stacks[3][kStack];
Context here, there[3];

void start(int i, void (*entry)(void*), void* arg = nullptr, void* tp = thread_pointer()) {
  make_context(there[i], stacks[i] + kStack, tp, entry, arg);
}
void go(int i) { fiberthread_switch(&here, &there[i]); }
void back(int i) { fiberthread_switch(&there[i], &here); }

void* got;

Test(context, entry_gets_its_argument_on_an_aligned_stack) {
  context_init();
  start(
      0,
      [](void* p) {
        got = p;
        alignas(16) volatile char local[16] = {};
        cr_assert_eq(reinterpret_cast<uintptr_t>(local) % 16, 0u);
        cr_assert_eq(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) % 16, 0u);
        for (;;) back(0);
      },
      &got);
  go(0);
  cr_assert_eq(got, &got);
}

uint64_t wrong;

Test(context, callee_saved_registers_are_each_contexts_own) {
  context_init();
  for (uintptr_t i = 0; i < 3; i++) {
    start(
        i,
        [](void* p) {
          auto n = reinterpret_cast<uintptr_t>(p);
          for (uint64_t seed = n << 32;; seed += 1000) wrong |= fill_switch_check(&there[n], &there[(n + 1) % 3 ? n + 1 : 0], seed);
        },
        reinterpret_cast<void*>(i));
  }
  // A ring of three contexts. The third comes back to `here` every time.
  start(2, [](void*) {
    for (uint64_t seed = 7777777;; seed += 3) wrong |= fill_switch_check(&there[2], &here, seed);
  });
  for (uint64_t seed = 0x123456789abcdef; seed < 0x123456789abcdef + 100000; seed++) wrong |= fill_switch_check(&here, &there[0], seed);
  cr_assert_eq(wrong, 0u);
}

double third(double x) {
  volatile double a = x, b = 3;
  return a / b;
}

Test(context, rounding_is_inherited_at_birth_and_then_each_contexts_own) {
  context_init();
  static double up, nearest;
  nearest = third(1);
  fesetround(FE_UPWARD);
  up = third(1);
  cr_assert(up > nearest);
  start(0, [](void*) {
    cr_assert_eq(fegetround(), FE_UPWARD);
    for (;;) {
      cr_assert(third(1) == up);
      back(0);
      cr_assert_eq(fegetround(), FE_UPWARD);
    }
  });
  fesetround(FE_TONEAREST);
  start(1, [](void*) {
    for (;;) {
      cr_assert_eq(fegetround(), FE_TONEAREST);
      cr_assert(third(1) == nearest);
      back(1);
    }
  });
  for (int i = 0; i < 10; i++) {
    go(0);
    cr_assert_eq(fegetround(), FE_TONEAREST);
    cr_assert(third(1) == nearest);
    go(1);
  }
  fesetround(FE_DOWNWARD);
  go(0);
  go(1);
  cr_assert_eq(fegetround(), FE_DOWNWARD);
}

#if defined(__x86_64__)

Test(context, x87_precision_is_each_contexts_own) {
  context_init();
  start(0, [](void*) {
    uint16_t word = 0x27f;  // 53 bits
    asm volatile("fldcw %0" ::"m"(word));
    for (;;) {
      back(0);
      asm volatile("fnstcw %0" : "=m"(word));
      cr_assert_eq(word, 0x27f);
    }
  });
  for (int i = 0; i < 3; i++) {
    go(0);
    uint16_t word;
    asm volatile("fnstcw %0" : "=m"(word));
    cr_assert_eq(word, 0x37f);
  }
}

Test(context, exception_flag_of_one_does_not_fault_in_another_that_traps_it) {
  context_init();
  start(0, [](void*) {
    feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(FE_INEXACT);
    for (;;) {
      back(0);
      asm volatile("fwait; fldz; fstp %%st(0); fwait" ::: "memory");
      cr_assert_eq(fegetexcept(), FE_INEXACT);
    }
  });
  for (int i = 0; i < 3; i++) {
    go(0);
    cr_assert_eq(fegetexcept(), 0);
    asm volatile("fld1; fldpi; fdivrp; fstp %%st(0); fwait" ::: "memory");  // the result is inexact
    third(1);
  }
}

#endif

// thread_pointer() would not do here, because the compiler takes its result for a constant of the function.
void* tp_now() {
  void* p;
#if defined(__x86_64__)
  asm volatile("mov %%fs:0, %0" : "=r"(p));
#else
  asm volatile("mrs %0, tpidr_el0" : "=r"(p));
#endif
  return p;
}

void* seen_tp;
alignas(64) char fake_tls[3][4096];

void swap_thread_pointers() {
  void* mine = tp_now();
  void* fake = fake_tls[1];
#if defined(__x86_64__)
  memcpy(fake, mine, 64);  // the stack guard and similar words
  *reinterpret_cast<void**>(fake) = fake;
#endif
  start(
      0,
      [](void*) {
        for (;;) {
          seen_tp = tp_now();
          back(0);
        }
      },
      nullptr, fake);
  for (int i = 0; i < 3; i++) {
    seen_tp = nullptr;
    go(0);
    cr_assert_eq(tp_now(), mine);
    cr_assert_eq(seen_tp, fake);
    cr_assert_eq(here.tp, mine);
    cr_assert_eq(there[0].tp, fake);
  }
  set_thread_pointer(fake);
  void* now = tp_now();
  set_thread_pointer(mine);
  cr_assert_eq(now, fake);
}

Test(context, thread_pointer_goes_with_the_context) {
  context_init();
  swap_thread_pointers();
}

Test(context, thread_pointer_goes_with_the_context_through_the_kernel) {
  fiberthread_fsgsbase = 0;
  swap_thread_pointers();
}

// ---- unwinding ----

bool in_entry(uintptr_t pc) { return pc - reinterpret_cast<uintptr_t>(&fiberthread_entry) < 32; }
int frames;
void* pcs[64];

__attribute__((noinline)) void deep(int n) {
  if (n) {
    deep(n - 1);
    asm volatile("" ::: "memory");  // no tail call
  } else {
    frames = backtrace(pcs, 64);
  }
}

Test(context, backtrace_ends_at_the_entry) {
  context_init();
  start(0, [](void*) {
    deep(5);
    for (;;) back(0);
  });
  go(0);
  cr_assert(frames >= 8, "%d frames", frames);  // six of deep, the lambda, the entry
  cr_assert(in_entry(reinterpret_cast<uintptr_t>(pcs[frames - 1])));
  for (int i = 0; i < frames - 1; i++) cr_assert(!in_entry(reinterpret_cast<uintptr_t>(pcs[i])));
}

#if defined(__x86_64__)

bool in_fill(uintptr_t pc) {
  return pc - reinterpret_cast<uintptr_t>(&fill_switch_check) <=
         reinterpret_cast<uintptr_t>(fill_switch_check_end) - reinterpret_cast<uintptr_t>(&fill_switch_check);
}

// Every single instruction of the switch must be unwindable. This single-steps through the switch, and unwinds at each instruction.
struct Walk {
  bool found = false;
  bool registers = false;
  uintptr_t last = 0;
};
constexpr uint64_t kSeedHere = 0x1000, kSeedThere = 0x2000;
int steps_in_switch, bad_walks;

_Unwind_Reason_Code look(_Unwind_Context* c, void* data) {
  auto& w = *static_cast<Walk*>(data);
  uintptr_t pc = _Unwind_GetIP(c);
  if (pc) w.last = pc;
  if (in_fill(pc) && !w.found) {
    w.found = true;
    constexpr int kRbx = 3, kRbp = 6;  // DWARF's numbers
    uint64_t seed = _Unwind_GetGR(c, kRbp) - 1;
    w.registers = (seed == kSeedHere || seed == kSeedThere) && _Unwind_GetGR(c, kRbx) == seed + 2;
    for (int i = 12; i <= 15; i++) w.registers = w.registers && _Unwind_GetGR(c, i) == seed + i - 9;
  }
  return _URC_NO_REASON;
}

void on_step(int, siginfo_t*, void* context) {
  auto pc = static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
  auto low = reinterpret_cast<uintptr_t>(&fiberthread_switch);
  if (pc - low >= reinterpret_cast<uintptr_t>(&fiberthread_entry) - low) return;
  steps_in_switch++;
  Walk w;
  _Unwind_Backtrace(look, &w);
  // The other context's stack ends at its entry. Ours goes on to the program's start, which is elsewhere.
  auto sp = static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
  bool other = sp - reinterpret_cast<uintptr_t>(stacks[0]) < kStack;
  if (!w.found || !w.registers || in_entry(w.last) != other) {
    bad_walks++;
    fprintf(stderr, "switch + %#lx: found %d, registers %d, last %#lx\n", long(pc - low), w.found, w.registers, long(w.last));
  }
}

void step_through(bool fsgsbase) {
  context_init();
  if (!fsgsbase) fiberthread_fsgsbase = 0;
  static char alternate[256 * 1024];
  stack_t ss = {alternate, 0, sizeof alternate};
  sigaltstack(&ss, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_step;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGTRAP, &action, nullptr);
  start(0, [](void*) {
    for (;;) wrong |= fill_switch_check(&there[0], &here, kSeedThere);
  });
  fill_switch_check(&here, &there[0], kSeedHere);
  // With an inexact result and another rounding mode, the switch takes its unlikely paths too.
  fesetround(FE_UPWARD);
  Walk first;
  _Unwind_Backtrace(look, &first);  // binds the symbols that it uses
  asm volatile("lea -128(%%rsp), %%rsp; pushf; orq $0x100, (%%rsp); popf; lea 128(%%rsp), %%rsp" ::: "memory", "cc");
  wrong |= fill_switch_check(&here, &there[0], kSeedHere);
  asm volatile("lea -128(%%rsp), %%rsp; pushf; andq $~0x100, (%%rsp); popf; lea 128(%%rsp), %%rsp" ::: "memory", "cc");
  cr_assert(steps_in_switch > 60, "%d steps", steps_in_switch);
  cr_assert_eq(bad_walks, 0);
  cr_assert_eq(wrong, 0u);
}

Test(context, unwinds_from_each_instruction) { step_through(true); }
Test(context, unwinds_from_each_instruction_through_the_kernel) { step_through(false); }

#endif

}  // namespace
