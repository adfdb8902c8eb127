/* SPDX-License-Identifier: MIT */
/* The stubs of the points. Each takes the name of a function of libc's, and goes on to the next function of that name with all its
   arguments as they were. */
#define POINT(name, gives_way) point name, gives_way, 3, enter_and_leave;
#define POINT_TWICE(name) point name, 0, 2, enter_and_leave;
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
  endbr64
  leaq 2b(%rip), %r11
  jmp \enter
  .cfi_endproc
  .size \name, . - \name
.endm

#include "preload/explore/points.def"

/* %r11: the slot. On the stack, upwards: xmm0 to xmm7, a pad, the registers of arguments and the count in %al, the return address. */
  .text
  .type enter, @function
  .p2align 4
enter:
  .cfi_startproc
  pushq %rax
  pushq %rdi
  pushq %rsi
  pushq %rdx
  pushq %rcx
  pushq %r8
  pushq %r9
  subq $128, %rsp
  .cfi_def_cfa_offset 192
  movaps %xmm0, (%rsp)
  movaps %xmm1, 16(%rsp)
  movaps %xmm2, 32(%rsp)
  movaps %xmm3, 48(%rsp)
  movaps %xmm4, 64(%rsp)
  movaps %xmm5, 80(%rsp)
  movaps %xmm6, 96(%rsp)
  movaps %xmm7, 112(%rsp)
  movq %rdi, %rsi
  movq 184(%rsp), %rdx
  movq %r11, %rdi
  call fiberthread_explore_enter
  movq %rax, %r11
  movaps (%rsp), %xmm0
  movaps 16(%rsp), %xmm1
  movaps 32(%rsp), %xmm2
  movaps 48(%rsp), %xmm3
  movaps 64(%rsp), %xmm4
  movaps 80(%rsp), %xmm5
  movaps 96(%rsp), %xmm6
  movaps 112(%rsp), %xmm7
  addq $128, %rsp
  popq %r9
  popq %r8
  popq %rcx
  popq %rdx
  popq %rsi
  popq %rdi
  popq %rax
  .cfi_def_cfa_offset 8
  jmp *%r11
  .cfi_endproc
  .size enter, . - enter

/* As enter, but comes back from the function, whose result it keeps, and calls fiberthread_explore_leave. If that returns true, the caller goes
   on in single steps. */
  .type enter_and_leave, @function
  .p2align 4
enter_and_leave:
  .cfi_startproc
  pushq %rbx
  .cfi_def_cfa_offset 16
  .cfi_offset %rbx, -16
  pushq %rdi
  pushq %rsi
  pushq %rdx
  pushq %rcx
  pushq %r8
  pushq %r9
  subq $8, %rsp
  .cfi_def_cfa_offset 72
  movq %r11, %rbx
  movq %rdi, %rsi
  movq 64(%rsp), %rdx
  movq %r11, %rdi
  subq $8, %rsp
  .cfi_def_cfa_offset 80
  call fiberthread_explore_enter
  addq $16, %rsp
  popq %r9
  popq %r8
  popq %rcx
  popq %rdx
  popq %rsi
  movq (%rsp), %rdi
  .cfi_def_cfa_offset 24
  pushq %rbx
  .cfi_def_cfa_offset 32
  call *%rax
  popq %rdi
  popq %rsi
  .cfi_def_cfa_offset 16
  movq %rax, %rbx
  movq 8(%rsp), %rdx
  call fiberthread_explore_leave
  testb %al, %al
  movq %rbx, %rax
  popq %rbx
  .cfi_def_cfa_offset 8
  jne 1f
  ret
1: pushfq
  .cfi_def_cfa_offset 16
  orl $0x100, (%rsp)            /* TF: the step is that of the return */
  popfq
  .cfi_def_cfa_offset 8
  ret
  .cfi_endproc
  .size enter_and_leave, . - enter_and_leave

#include "sched/arch/x86_64/asm_end.h"
