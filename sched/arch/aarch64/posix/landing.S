// SPDX-License-Identifier: MIT
// Two landings for pthread_exit of main, as in x86_64/posix/landing.S. They differ only in their address.
        .macro  landing name
        .globl  \name
        .hidden \name
        .type   \name, %function
\name:
        .cfi_startproc
        hint    #34                             // bti c
        stp     x29, x30, [sp, #-16]!
        .cfi_adjust_cfa_offset 16
        .cfi_rel_offset x29, 0
        .cfi_rel_offset x30, 8
        mov     w1, #0
        bl      __sigsetjmp
        hint    #36                             // bti j: longjmp's jump comes here
        cbnz    w0, 1f
        ldp     x29, x30, [sp], #16
        .cfi_adjust_cfa_offset -16
        ret
        .cfi_undefined x30                      // unwinding ends here
1:      bl      fiberthread_main_landed
        brk     #1
        .cfi_endproc
        .size   \name, . - \name
        .endm

        .text
        landing fiberthread_landing
        landing fiberthread_landing_elsewhere

#include "sched/arch/aarch64/asm_end.h"
