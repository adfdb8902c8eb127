/* SPDX-License-Identifier: MIT */
/* The stubs of the points. Each takes the name of a function of libc's, and goes on to the next function of that name with all its
   arguments as they were, so the caller's frame is that function's own. */
#define POINT(name, gives_way) point name, gives_way, 0, enter;
#define POINT_TWICE(name) point name, 0, 2, enter_twice;
#define POINT_BEFORE(name) point name, 0, 0, enter;
#define PLACE(name) point name, 4, 0, enter;

.macro point name, gives_way, after, enter
  .section .rodata.str1.1, "aMS", @progbits, 1
1: .asciz "\name"
  .section .data.rel.local, "aw", @progbits
  .balign 8
2: .quad 0                      /* struct Slot in points.cpp: the next function */
  .quad 1b
  .quad \gives_way
  .quad \after
  .text
  .globl \name
  .type \name, @function
  .p2align 4
\name:
  .cfi_startproc
  hint #34                      /* bti c */
  adrp x16, 2b
  add x16, x16, :lo12:2b
  b \enter
  .cfi_endproc
  .size \name, . - \name
.endm

#include "preload/explore/points.def"

/* x16: the slot. On the stack, upwards: x29 and x30, x0 to x8, a pad, q0 to q7. */
  .text
  .type enter, @function
  .p2align 4
enter:
  .cfi_startproc
  stp x29, x30, [sp, -224]!
  .cfi_def_cfa_offset 224
  .cfi_offset x29, -224
  .cfi_offset x30, -216
  stp x0, x1, [sp, 16]
  stp x2, x3, [sp, 32]
  stp x4, x5, [sp, 48]
  stp x6, x7, [sp, 64]
  str x8, [sp, 80]
  stp q0, q1, [sp, 96]
  stp q2, q3, [sp, 128]
  stp q4, q5, [sp, 160]
  stp q6, q7, [sp, 192]
  mov x1, x0
  mov x2, x30
  mov x0, x16
  bl fiberthread_explore_enter
  mov x16, x0
  ldp x0, x1, [sp, 16]
  ldp x2, x3, [sp, 32]
  ldp x4, x5, [sp, 48]
  ldp x6, x7, [sp, 64]
  ldr x8, [sp, 80]
  ldp q0, q1, [sp, 96]
  ldp q2, q3, [sp, 128]
  ldp q4, q5, [sp, 160]
  ldp q6, q7, [sp, 192]
  ldp x29, x30, [sp], 224
  .cfi_def_cfa_offset 0
  .cfi_restore x29
  .cfi_restore x30
  br x16
  .cfi_endproc
  .size enter, . - enter

/* As enter, but comes back from the function, whose result it keeps, and brings the caller to a second point. */
  .type enter_twice, @function
  .p2align 4
enter_twice:
  .cfi_startproc
  stp x29, x30, [sp, -64]!
  .cfi_def_cfa_offset 64
  .cfi_offset x29, -64
  .cfi_offset x30, -56
  stp x0, x1, [sp, 16]
  stp x2, x3, [sp, 32]
  stp x16, x19, [sp, 48]
  .cfi_offset x19, -8
  mov x1, x0
  mov x2, x30
  mov x0, x16
  bl fiberthread_explore_enter
  mov x16, x0
  ldp x0, x1, [sp, 16]
  ldp x2, x3, [sp, 32]
  blr x16
  mov w19, w0
  ldr x0, [sp, 48]
  ldr x1, [sp, 16]
  ldr x2, [sp, 8]
  bl fiberthread_explore_leave
  mov w0, w19
  ldr x19, [sp, 56]
  ldp x29, x30, [sp], 64
  .cfi_def_cfa_offset 0
  .cfi_restore x19
  .cfi_restore x29
  .cfi_restore x30
  ret
  .cfi_endproc
  .size enter_twice, . - enter_twice

#include "sched/arch/aarch64/asm_end.h"
