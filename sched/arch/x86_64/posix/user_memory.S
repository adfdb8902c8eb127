// SPDX-License-Identifier: MIT
// Accesses that may fault; see shim/user_memory.h. The functions have no frame, so the handler of a fault can leave them at any
// instruction.
        .text
        .globl fiberthread_user_load, fiberthread_user_exchange, fiberthread_user_copy, fiberthread_user_end, fiberthread_user_fault
        .hidden fiberthread_user_load, fiberthread_user_exchange, fiberthread_user_copy, fiberthread_user_end, fiberthread_user_fault
        .type fiberthread_user_load, @function
        .type fiberthread_user_exchange, @function
        .type fiberthread_user_copy, @function
fiberthread_user_load:
        .cfi_startproc
        endbr64
        mov (%rdi), %eax
        mov %eax, (%rsi)
        xor %eax, %eax
        ret
        .cfi_endproc
        .size fiberthread_user_load, . - fiberthread_user_load
fiberthread_user_exchange:
        .cfi_startproc
        endbr64
        mov (%rsi), %eax
        lock cmpxchg %edx, (%rdi)
        jne 1f
        xor %eax, %eax
        ret
1:      mov %eax, (%rsi)
        mov $1, %eax
        ret
        .cfi_endproc
        .size fiberthread_user_exchange, . - fiberthread_user_exchange
fiberthread_user_copy:
        .cfi_startproc
        endbr64
1:      sub $4, %rdx
        jb 2f
        mov (%rsi,%rdx), %eax
        mov %eax, (%rdi,%rdx)
        jmp 1b
2:      xor %eax, %eax
        ret
fiberthread_user_end:
fiberthread_user_fault:
        mov $-14, %rax                                          // -EFAULT
        ret
        .cfi_endproc
        .size fiberthread_user_copy, . - fiberthread_user_copy

#include "sched/arch/x86_64/asm_end.h"
