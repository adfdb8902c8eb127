// SPDX-License-Identifier: MIT
// void NAME(void (*function)(void*): x0, void* argument: x1)
// Calls function(argument), and does no more. Unwinders ask the personality of this frame when they unwind the stack through it.
        .macro watched_call name, personality
        .globl  \name
        .hidden \name
        .type   \name, %function
        .p2align 4
\name:
        .cfi_startproc
        .cfi_personality 0x1b, \personality     // pc-relative, 4 bytes
        hint    #34                             // bti c
        stp     x29, x30, [sp, #-16]!
        .cfi_adjust_cfa_offset 16
        .cfi_rel_offset x29, 0
        .cfi_rel_offset x30, 8
        mov     x29, sp
        mov     x2, x0
        mov     x0, x1
        blr     x2
        ldp     x29, x30, [sp], #16
        .cfi_adjust_cfa_offset -16
        .cfi_restore x29
        .cfi_restore x30
        ret
        .cfi_endproc
        .size   \name, . - \name
        .endm

        .text
        watched_call fiberthread_once_call, fiberthread_once_personality
        watched_call fiberthread_call_to_leave, fiberthread_leave_personality

#include "sched/arch/aarch64/asm_end.h"
