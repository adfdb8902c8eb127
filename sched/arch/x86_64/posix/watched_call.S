// SPDX-License-Identifier: MIT
// void NAME(void (*function)(void*): rdi, void* argument: rsi)
// Calls function(argument), and does no more. Unwinders ask the personality of this frame when they unwind the stack through it.
        .macro watched_call name, personality
        .globl  \name
        .hidden \name
        .type   \name, @function
        .p2align 4
\name:
        .cfi_startproc
        .cfi_personality 0x1b, \personality     // pc-relative, 4 bytes
        endbr64
        push    %rbp                            // keeps the stack aligned
        .cfi_adjust_cfa_offset 8
        mov     %rdi, %rax
        mov     %rsi, %rdi
        call    *%rax
        pop     %rbp
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc
        .size   \name, . - \name
        .endm

        .text
        watched_call fiberthread_once_call, fiberthread_once_personality
        watched_call fiberthread_call_to_leave, fiberthread_leave_personality

#include "sched/arch/x86_64/asm_end.h"
